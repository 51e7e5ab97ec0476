"""Where a job's run is kept on its volume."""


def path_in_volume(namespace: str, name: str) -> str:
    """The job's folder, relative to `storage.mountPath`; no other job has it, of another namespace either."""
    return f"runs/{namespace}/{name}"
