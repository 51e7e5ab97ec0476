"""Devices on which no second set of weights is made."""

from types import SimpleNamespace

import torch

from rljob_runtime.engines.staging_worker import StagingWorker


def test_on_an_npu_versions_do_not_arrive_while_it_generates() -> None:
    # torch has no name for NPUs without torch_npu.
    worker = SimpleNamespace(
        device=torch.device("meta"), cache_config=SimpleNamespace(kv_cache_memory_bytes=2**40)
    )
    assert StagingWorker.staging_obstacle(worker) == (
        "it is on a device of type meta, and not on a GPU or CPUs"
    )
