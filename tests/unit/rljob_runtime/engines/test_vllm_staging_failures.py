"""A version that a vLLM engine cannot take in while it generates, whatever is raised: it counts as one that
did not arrive, and what is told names the error."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.engines.core_life import CoreLife
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.engines.vllm_staging import NotStaged, Staging
from rljob_runtime.weights.contents import tensor_shapes
from rljob_runtime.weights.shm import WeightsGone, WeightStore
from tests.support.runtime.tiny_models import tiny_model

STAGED = WeightRef(3, "nccl", "127.0.0.1:1/2/1", staged=True)


class _Core:
    """An engine core whose staging raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.dead_error = ConnectionError
        self.swap_obstacle = ""

    async def staging_obstacle(self) -> str:
        return ""

    async def stage_broadcast(self, *_: Any) -> None:
        raise self._error

    stage_folder = stage_broadcast


ERRORS = [
    (AssertionError(), "AssertionError"),
    (TimeoutError(), "TimeoutError"),
    (RuntimeError("two\n lines"), "RuntimeError: two lines"),
]


async def opened(core: _Core, folder: Path) -> Staging:
    life = CoreLife("fast-0", lambda: None)
    life.begin()
    staging = Staging("fast-0", life, 1)
    given: Any = core
    await staging.open(given, folder)
    assert staging.possible
    return staging


@pytest.mark.parametrize(("error", "told"), ERRORS)
async def test_a_broadcast_that_raises_has_not_arrived(tmp_path: Path, error: Exception, told: str) -> None:
    core: Any = _Core(error)
    staging = await opened(core, tmp_path)
    with pytest.raises(NotStaged, match=f"version 3 did not arrive from .*: {told}"):
        await staging.bring(core, STAGED, {})
    with pytest.raises(WeightsGone):
        staging.take(STAGED)
    await staging.close()


@pytest.mark.parametrize(("error", "told"), ERRORS)
async def test_a_folder_that_is_not_taken_in_is_loaded_in_the_pause(
    tmp_path: Path, error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    core: Any = _Core(error)
    staging = await opened(core, tmp_path)
    store = WeightStore(tmp_path / "store", 1)
    folder = await asyncio.to_thread(store.publish, 3, tiny_model)
    ref = WeightRef(3, "shm", str(folder))
    with caplog.at_level(logging.WARNING):
        await staging.bring(core, ref, tensor_shapes(folder))
    assert staging.take(ref) is None
    assert told in caplog.messages[0]
    await staging.close()
    store.close()
