"""Where a job's run is kept on its volume, and where the next attempt goes on."""

from rljob_api.job import Spec
from rljob_api.status import Status


def path_in_volume(namespace: str, name: str) -> str:
    """The job's folder, relative to `storage.mountPath`; no other job has it, of another namespace either."""
    return f"runs/{namespace}/{name}"


def goes_on(spec: Spec | None, status: Status) -> str:
    """From where the next attempt goes on, for people. Only what a driver told of is known of the volume."""
    if spec is not None and not spec.storage.volume:
        return "anew"
    saved = status.training.checkpoint if status.training is not None else None
    if saved is None:
        return "from the volume's newest checkpoint, or anew without one"
    return f"from the checkpoint of step {saved.step}"
