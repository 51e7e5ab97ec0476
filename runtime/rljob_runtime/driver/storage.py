"""Whether the trainer's pods share the storage that checkpoints go to.

Guarantees: a job that could not write whole checkpoints is refused before it trains. Pure.
"""

from collections.abc import Sequence


class StorageNotShared(ValueError):
    """Checkpoints would be scattered over pods; the message says what to do."""


def storage_warning(sees: Sequence[bool], pods: int, folder: str) -> str | None:
    """What a person should know of the storage; None where all ranks share it. `sees`: for each rank whether
    it finds a file that the driver wrote to `folder`; `pods`: how many pods the ranks are on.

    Raises `StorageNotShared` where ranks in several pods each have a folder of their own.
    """
    if all(sees):
        return None
    if pods > 1:
        raise StorageNotShared(
            f"spec.storage.volume: the trainer's {pods} pods do not share {folder}, and each writes a "
            "part of a checkpoint: give a volume that all pods can mount, such as a ReadWriteMany claim"
        )
    return (
        f"{folder} is the trainer pod's own: checkpoints are lost with the pod, and the trained model stays "
        "there (spec.storage.volume)"
    )
