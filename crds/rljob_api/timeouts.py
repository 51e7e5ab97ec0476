"""How long the parts of a job may take before they count as failed."""

from pydantic import Field

from rljob_api.base import Model

_WEEK = 7 * 24 * 3600


class Timeouts(Model):
    """How long the parts of a running job may take, in seconds. What takes longer counts as failed: it is
    started again, a few times in a row at most, unless the field says otherwise."""

    start_seconds: int = Field(default=1800, ge=10, le=_WEEK)
    """Longest that an inference engine, or the trainer's ranks together, may take to be ready once their pods
    are: starting processes, loading libraries and the model, compiling."""
    weight_update_seconds: int = Field(default=900, ge=10, le=_WEEK)
    """Longest that each part of a weight update may take: publishing or sending a version, fetching it,
    interrupting an engine, loading it there. An engine that takes longer is replaced."""
    step_seconds: int = Field(default=21600, ge=10, le=_WEEK)
    """Longest that one step of the trainer may take, or writing or reading one checkpoint."""
    stall_seconds: int = Field(default=1800, ge=60, le=_WEEK)
    """Longest that work may stand still. Where a step waits for its groups and, for so long, no engine
    generated a token, started or loaded weights, no reward came back and no group was completed, the engines
    that hold requests are started again; where that happens a second time in the step, the job ends. An
    engine with requests that generated no token for so long is replaced where others did, or where it is to
    finish them; a request that got no token for so long on an engine that goes on with others is taken out
    and goes on elsewhere; a trainer whose ranks wait for one another longer is started again. How long a
    response or a step takes altogether does not count."""
