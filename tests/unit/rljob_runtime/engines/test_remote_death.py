"""An engine in another process that is gone, or does not close in order, by what Ray raises then."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayError, RayTaskError

from rljob_runtime.engines.protocol import EngineDied
from rljob_runtime.engines.remote import RemoteEngine
from rljob_runtime.net.auth import new_keys


def engine_that_raises(error: Exception) -> RemoteEngine:
    """An engine whose worker answers every order with this error."""

    async def fails(*_: object) -> None:
        raise error

    method = SimpleNamespace(remote=fails)
    actor: Any = SimpleNamespace(load_snapshot=method, close=method)
    return RemoteEngine("fast-0", actor, new_keys()[1])


@pytest.mark.parametrize("error", [ActorDiedError(), OutOfMemoryError("killed by Ray's memory monitor")])
async def test_a_process_that_is_gone_is_an_engine_that_died(error: RayError) -> None:
    engine = engine_that_raises(error)
    with pytest.raises(EngineDied, match="engine fast-0: its process has ended"):
        await engine.load_snapshot()


@pytest.mark.parametrize(
    "error",
    [RayTaskError("close", "a traceback", RuntimeError("no process")), OutOfMemoryError("killed")],
)
async def test_what_does_not_close_in_order_is_killed(
    monkeypatch: pytest.MonkeyPatch, error: RayError
) -> None:
    import ray

    killed: list[object] = []
    monkeypatch.setattr(ray, "kill", killed.append)
    engine = engine_that_raises(error)
    await engine.close()
    assert len(killed) == 1
    with pytest.raises(EngineDied):
        await engine.load_snapshot()
