"""Prompts that wait in vLLM's scheduler: what it is told, and what it is not. The scheduler is a stand-in;
vLLM's own is in tests/runtime/test_vllm_swap.py."""

import logging
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_runtime.engines import vllm_prefills
from rljob_runtime.engines.prefill_gate import Costs, Queue, StepTimes
from rljob_runtime.engines.vllm_prefills import Delaying, delays


class PauseState(IntEnum):
    UNPAUSED = 0
    PAUSED_NEW = 1
    PAUSED_ALL = 2


class Status(IntEnum):
    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2


@dataclass(eq=False)
class _Request:
    prompt: int = 10
    max_tokens: int = 8
    num_output_tokens: int = 1
    num_output_placeholders: int = 0
    status: Status = Status.WAITING

    @property
    def num_tokens(self) -> int:
        return self.prompt


class _Waiting(deque[_Request]):
    def peek_request(self) -> _Request:
        return self[0]


@dataclass(eq=False)
class _Step:
    num_scheduled_tokens: dict[int, int]
    scheduled_spec_decode_tokens: dict[int, list[int]] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


class _Scheduler:
    """As vLLM's: what waits begins where there is a place, unless it is paused."""

    def __init__(self) -> None:
        self._pause_state = PauseState.UNPAUSED
        self.running: list[_Request] = []
        self.waiting = _Waiting()
        self.max_num_running_reqs, self.max_num_scheduled_tokens = 4, 100
        self.block_size, self.free_blocks = 16, 100
        self.kv_cache_manager = SimpleNamespace(block_pool=self)
        self.drafts: dict[int, list[int]] = {}
        self.asked: list[tuple[PauseState, Any]] = []
        self.broken = False

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def get_num_free_blocks(self) -> int:
        return self.free_blocks

    def schedule(self, throttle: bool = False) -> _Step:
        self.asked.append((self._pause_state, throttle))
        if self.broken:
            raise RuntimeError("out of order")
        tokens = {id(each): 1 + len(self.drafts.get(id(each), ())) for each in self.running}
        while self._pause_state == 0 and self.waiting and len(self.running) < self.max_num_running_reqs:
            self.running.append(new := self.waiting.popleft())
            tokens[id(new)] = new.prompt
        return _Step({} if self._pause_state == 2 else tokens, self.drafts)

    def update_from_output(self, step: _Step, output: Any) -> Any:
        return output


class _Delaying(Delaying, _Scheduler):
    """One whose clock is turned by hand, and whose gate knows what steps cost."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(vllm_prefills.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def scheduler(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> _Delaying:
    monkeypatch.setattr(StepTimes, "costs", lambda self: Costs(pure=1.0, extra=3.0))
    made = _Delaying()
    made.running = [_Request(), _Request()]
    return made


NEW, OWN = PauseState.PAUSED_NEW, PauseState.UNPAUSED


def states(scheduler: _Delaying, steps: int) -> list[PauseState]:
    """What vLLM's scheduler found itself to be in so many steps."""
    scheduler.asked.clear()
    for _ in range(steps):
        scheduler.schedule(True)
        assert scheduler._pause_state == OWN
    assert all(throttle for _, throttle in scheduler.asked), "what vLLM says is passed on"
    return [state for state, _ in scheduler.asked]


def test_prompts_wait_until_their_places_have_cost_as_much_as_a_step(scheduler: _Delaying) -> None:
    assert states(scheduler, 3) == [OWN] * 3
    scheduler.waiting.append(_Request())
    # One place, of two running: 6 steps cost what 3 seconds of both do.
    assert states(scheduler, 8) == [NEW] * 6 + [OWN] * 2
    assert (len(scheduler.running), len(scheduler.waiting)) == (3, 0)


def test_there_is_no_place_for_them(scheduler: _Delaying) -> None:
    scheduler.running *= 2
    scheduler.waiting += [_Request(), _Request()]
    assert states(scheduler, 80) == [OWN] * 80


@pytest.mark.parametrize(
    "running",
    [[], [_Request(num_output_tokens=6, num_output_placeholders=2)] * 2],
    ids=["nothing runs", "what runs gets its last tokens by the steps under way"],
)
def test_the_accelerator_would_stand_idle(scheduler: _Delaying, running: list[_Request]) -> None:
    scheduler.running = running
    scheduler.waiting.append(_Request())
    assert states(scheduler, 1) == [OWN]
    assert not scheduler.waiting


def test_one_that_goes_on_beside_some_that_do_not_is_enough(scheduler: _Delaying) -> None:
    scheduler.running[0].num_output_placeholders = 7
    scheduler.waiting.append(_Request())
    assert states(scheduler, 1) == [NEW]


@pytest.mark.parametrize("queue", ["waiting", "skipped_waiting"])
def test_what_was_preempted_does_not_wait(scheduler: _Delaying, queue: str) -> None:
    scheduler.waiting.append(_Request())
    scheduler.skipped_waiting = _Waiting()  # type: ignore[attr-defined]
    getattr(scheduler, queue).appendleft(_Request(status=Status.PREEMPTED))
    assert states(scheduler, 1) == [OWN]


def test_prompts_that_did_not_fit_into_a_step_go_on_with_others(scheduler: _Delaying) -> None:
    scheduler.running[0].max_tokens = 1000
    scheduler.waiting += [_Request(prompt=98)]
    states(scheduler, 7)
    scheduler.running.pop()
    scheduler.waiting += [_Request(), _Request()]
    assert states(scheduler, 2) == [OWN, OWN]


@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_a_pause_is_as_it_is_without(scheduler: _Delaying, state: PauseState) -> None:
    scheduler.waiting.append(_Request())
    states(scheduler, 2)
    scheduler._pause_state = state
    for _ in range(99):
        scheduler.schedule()
    assert {each for each, _ in scheduler.asked[2:]} == {state}
    scheduler._pause_state = OWN
    # As many as were left: no step of the pause counts.
    assert states(scheduler, 5) == [NEW] * 4 + [OWN]


def test_a_step_that_fails_leaves_no_pause(scheduler: _Delaying) -> None:
    scheduler.waiting.append(_Request())
    scheduler.broken = True
    with pytest.raises(RuntimeError, match="out of order"):
        scheduler.schedule()
    assert scheduler.asked == [(NEW, False)] and scheduler._pause_state == OWN


@pytest.fixture
def told(scheduler: _Delaying, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """What the gate is told of steps: tokens of prompts, and seconds."""
    found: list[tuple[int, float]] = []
    monkeypatch.setattr(scheduler.gate, "ended", lambda *step: found.append(step))
    monkeypatch.setattr(scheduler.gate, "admits", lambda queue, now: True)
    return found


def test_a_step_takes_the_time_from_the_end_of_the_one_before(
    scheduler: _Delaying, clock: list[float], told: list[tuple[int, float]]
) -> None:
    first = scheduler.schedule()
    clock[0] = 1.0
    scheduler.waiting.append(_Request(prompt=30))
    second = scheduler.schedule()
    clock[0] = 5.0
    assert scheduler.update_from_output(first, "answer") == "answer"
    clock[0] = 7.0
    scheduler.update_from_output(second, None)
    assert told == [(0, 5.0), (29, 2.0)]


def test_times_without_a_step_are_no_step_s(
    scheduler: _Delaying, clock: list[float], told: list[tuple[int, float]]
) -> None:
    for began in (0.0, 100.0):
        clock[0] = began
        step = scheduler.schedule()
        clock[0] = began + 2.0
        scheduler.update_from_output(step, None)
    assert told == [(0, 2.0), (0, 2.0)]


def test_a_step_without_outputs_and_one_of_nothing_are_not_told(
    scheduler: _Delaying, clock: list[float], told: list[tuple[int, float]]
) -> None:
    scheduler.schedule()
    clock[0] = 1.0
    step = scheduler.schedule()
    clock[0] = 3.0
    scheduler.update_from_output(step, None)
    scheduler.running.clear()
    scheduler.update_from_output(scheduler.schedule(), None)
    assert told == [(0, 2.0)]


def test_drafts_are_no_prompt(scheduler: _Delaying, told: list[tuple[int, float]]) -> None:
    scheduler.drafts = {id(scheduler.running[0]): [1, 2, 3]}
    scheduler.update_from_output(scheduler.schedule(), None)
    assert [tokens for tokens, _ in told] == [0]


def test_the_gate_is_told_what_there_is(scheduler: _Delaying, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Queue] = []
    monkeypatch.setattr(scheduler.gate, "admits", lambda queue, now: not asked.append(queue))
    scheduler.waiting += [_Request(prompt=33) for _ in range(5)]
    scheduler.free_blocks = 11
    scheduler.schedule()
    scheduler.schedule()
    assert asked == [Queue(2, 2, room=3), Queue(4, 0)]
    scheduler.skipped_waiting, scheduler.waiting = scheduler.waiting, _Waiting()  # type: ignore[attr-defined]
    monkeypatch.setattr(scheduler, "get_request_counts", lambda: (2, 3))
    scheduler.schedule()
    assert asked[2:] == [Queue(2, 2)], "nothing is known of them"


@pytest.mark.parametrize(
    ("holds", "differs", "expected", "log"),
    [
        (True, [], True, ""),
        (True, ["PauseState"], False, "this version of vLLM differs in PauseState"),
        (False, [], False, "its scheduler on ascend is vLLM's own"),
    ],
)
def test_where_they_cannot_wait_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    holds: bool,
    differs: list[str],
    expected: bool,
    log: str,
) -> None:
    monkeypatch.setattr(vllm_prefills, "prefills_misfit", lambda: differs)
    with caplog.at_level(logging.WARNING):
        assert delays("ascend", holds) is expected
    assert log in caplog.text and bool(log) == ("delayPrefills does nothing" in caplog.text)
