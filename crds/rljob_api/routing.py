"""Which engine runs a request, and when: the routing policies."""

from typing import ClassVar, Literal

from pydantic import Field

from rljob_api.base import Model, OneOf


class Adjacent(Model):
    """Static: all responses to a prompt go to one engine, neighbouring prompts to the same one. A baseline to
    compare with: engines with long responses finish late, and the others stand idle."""


class Interleaved(Model):
    """Static: the responses to a prompt go to the engines in turn, so that none gets all of a long group. A
    baseline to compare with."""


class LeastInFlight(Model):
    """The oldest request goes to the engine that runs the smallest share of the requests that it can run.
    Fast and heavy engines are treated alike."""


class Adaptive(Model):
    """By lengths as they are known: from responses that run, from finished ones to the same prompt, and from
    earlier epochs. A single engine has nothing to divide; pools that are scaled are divided as soon as there
    are several."""


class Probe(Model):
    """P-DSR: one response of each group, its probe, runs first, on the fast pool. The groups with the longest
    probes of a cohort go to the heavy pool; the others stay on the fast pool with a cap, and a response above
    the cap goes on on the heavy pool. As long as a pool has no engine, the other one does its work, without a
    cap."""

    probes: int = Field(default=1, ge=1, le=1023)
    """Responses of each group that run before the others; the longest of them counts."""
    cohort_prompts: int | None = Field(default=None, ge=1, le=1_000_000)
    """Prompts whose probes are compared with each other. Fewer are compared when their probes have ended, no
    further prompt may begin, and the fast pool has nothing else to do. Default: the prompts of a step."""
    heavy_share: float = Field(default=0.2, gt=0, lt=1)
    """Part of a cohort's groups that go to the heavy pool: those with the longest probes. Rounded to whole
    groups."""
    cap_factor: float = Field(default=1.5, ge=1, le=1000)
    """The cap of a response on the fast pool, in response tokens, is this times the cut: the shortest probe
    among the groups that go to the heavy pool. It does not count the prompt, so that no prompt is above it,
    however long."""
    on_trip: Literal["restart", "move"] = "restart"
    """What a response above the cap does on the heavy pool. restart: it begins anew, as published. move: it
    goes on with the tokens that it has."""


class Routing(OneOf):
    """The policy that says which engine runs which request."""

    one_of: ClassVar[tuple[str, ...]] = ("adjacent", "interleaved", "least_in_flight", "probe", "adaptive")

    adjacent: Adjacent | None = None
    """Neighbouring prompts to the same engine, always."""
    interleaved: Interleaved | None = None
    """A prompt's responses to different engines, always."""
    least_in_flight: LeastInFlight | None = None
    """The engine with most room."""
    probe: Probe | None = None
    """P-DSR: a first response decides which pool the others go to."""
    adaptive: Adaptive | None = None
    """By lengths, as they become known."""
