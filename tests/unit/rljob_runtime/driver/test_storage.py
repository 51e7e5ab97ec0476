"""Whether the trainer's pods share the storage of checkpoints."""

import pytest

from rljob_runtime.driver.storage import StorageNotShared, storage_warning


def test_storage_of_the_trainer_pods() -> None:
    assert storage_warning([True, True], pods=2, folder="/f") is None
    assert "lost with the pod" in (storage_warning([False, False], pods=1, folder="/f") or "")
    with pytest.raises(StorageNotShared, match=r"2 pods do not share /f"):
        storage_warning([True, False], pods=2, folder="/f")
