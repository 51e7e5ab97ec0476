"""A version that is put in between two steps of an engine core: what happens in which order, and what is
counted when. The core is a stand-in; vLLM's own is in tests/runtime/test_vllm_swap.py."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_runtime.engines import vllm_swap
from rljob_runtime.engines.vllm_swap import keeps_order, swap, without_token


@pytest.fixture(autouse=True)
def wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without vLLM's kind of message."""
    monkeypatch.setattr(vllm_swap, "_wake", lambda core: core.did.append("wake"))


@dataclass
class _Request:
    request_id: str
    num_output_tokens: int = 0
    num_output_placeholders: int = 0


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([], []),
        # It waits, or half of its prompt is computed.
        ([_Request("a")], ["a"]),
        # Its first token comes by a step that is under way.
        ([_Request("a", 0, 1)], []),
        ([_Request("a", 3, 0), _Request("b", 3, 2), _Request("c")], ["c"]),
    ],
)
def test_who_has_no_token(requests: list[_Request], expected: list[str]) -> None:
    assert without_token(requests) == expected


class _Executor:
    def __init__(self, core: "_Core", error: Exception | None) -> None:
        self._core = core
        self._error = error

    def collective_rpc(self, method: str, args: tuple[int], non_block: bool = False) -> Any:
        self._core.did.append(f"{method} {args[0]}")
        future: Future[list[None]] = Future()
        if self._error is None:
            future.set_result([None])
        else:
            future.set_exception(self._error)
        return future if non_block else future.result()


class UniProcExecutor(_Executor):
    """By its name it is vLLM's."""


class _Core:
    """An engine core with requests, and steps under way, the newest first."""

    def __init__(
        self,
        requests: list[_Request],
        steps: int,
        error: Exception | None = None,
    ) -> None:
        self.requests = {each.request_id: each for each in requests}
        self.batch_queue: deque[Any] | None = deque((None, f"step {steps - i}", None) for i in range(steps))
        self.model_executor = UniProcExecutor(self, error)
        self.scheduler = self
        kept = SimpleNamespace(_cache={})
        pool = SimpleNamespace(blocks=[], cached_block_hash_to_block=kept)
        self.kv_cache_manager = SimpleNamespace(block_pool=pool)
        self.did: list[str] = []
        self.awaited: tuple[str, Callable[[], None]] | None = None
        self.idle: Future[None] | None = Future() if steps else None

    def when_processed(self, step: str, call: Callable[[], None]) -> None:
        self.awaited = step, call

    def abort_requests(self, names: list[str]) -> None:
        self.did.append(f"abort {','.join(names)}")
        for name in names:
            del self.requests[name]

    def pause_scheduler(self, mode: str, clear: bool) -> Future[None] | None:
        self.did.append(f"pause {mode} {clear}")
        return self.idle

    def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        self.did.append("clear")

    def resume_scheduler(self) -> None:
        self.did.append("resume")


def test_with_steps_under_way_tokens_are_counted_when_the_last_of_them_was_processed() -> None:
    core = _Core([_Request("a", 5, 2), _Request("b", 0, 1), _Request("c"), _Request("d", 2, 1)], steps=2)
    answer = swap(core, 7, True)
    assert core.did == ["place_between_steps 7", "abort c"]
    assert not answer.done() and core.awaited is not None and core.awaited[0] == "step 2"
    # One ended by a step that was under way, and one comes after the version.
    del core.requests["d"]
    core.requests |= {"a": _Request("a", 7), "b": _Request("b", 1), "e": _Request("e")}
    core.awaited[1]()
    counts, unbegun, began, ended = answer.result()
    assert (counts, unbegun) == ({"a": 7, "b": 1, "e": 0}, ["c"])
    assert began <= ended


@pytest.mark.parametrize("queue", [deque(), None], ids=["none under way", "one step at a time"])
def test_with_no_step_under_way_they_are_counted_at_once(queue: deque[Any] | None) -> None:
    core = _Core([_Request("a", 5)], steps=0)
    core.batch_queue = queue
    assert swap(core, 7, True).result()[:2] == ({"a": 5}, [])


def test_where_the_cache_is_computed_anew_that_is_once_the_steps_under_way_have_ended() -> None:
    core = _Core([_Request("a", 5, 2), _Request("c")], steps=2)
    answer = swap(core, 7, False)
    assert (core.did, answer.done()) == (["place_between_steps 7", "pause keep False"], False)
    core.requests["a"] = _Request("a", 7)
    assert core.idle is not None
    core.idle.set_result(None)
    assert core.did[2:] == ["clear", "resume", "wake"]
    assert answer.result()[:2] == ({"a": 7, "c": 0}, [])


def test_an_idle_core_is_done_at_once() -> None:
    core = _Core([], steps=0)
    assert swap(core, 7, False).result()[:2] == ({}, [])
    assert core.did == ["place_between_steps 7", "pause keep False", "clear", "resume", "wake"]


@pytest.mark.parametrize("keep", [True, False])
def test_what_goes_wrong_on_a_rank_is_told(keep: bool) -> None:
    core = _Core([_Request("a", 5)], 0, RuntimeError("version 7 is not there"))
    with pytest.raises(RuntimeError, match="version 7 is not there"):
        swap(core, 7, keep).result()
    assert "resume" not in core.did


class _Derived(UniProcExecutor):
    pass


@pytest.mark.parametrize(
    ("executor", "keeps"), [(UniProcExecutor, True), (_Derived, True), (_Executor, False)]
)
def test_which_executors_keep_the_order_of_what_they_are_given(executor: type, keeps: bool) -> None:
    assert keeps_order(executor) is keeps
