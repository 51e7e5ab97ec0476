"""Events as records of the Trace Event Format."""

from typing import Any

import pytest

from rljob_runtime.trace.export.trace_event import PLACES, Tracks
from rljob_runtime.trace.record.event_log import EVENTS
from tests.support.runtime.events import event, generated, windows
from tests.support.runtime.trace_format import check_format


def records(*events: Any) -> list[dict[str, Any]]:
    tracks = Tracks()
    found = [record for each in events for record in tracks.of_event(each)]
    check_format(found)
    return [record for record in found if record["ph"] != "M"]


def names(found: list[dict[str, Any]]) -> dict[int, str]:
    return {each["pid"]: each["args"]["name"] for each in found if each["name"] == "process_name"}


def test_every_kind_of_event_has_a_place():
    assert set(PLACES) == set(EVENTS)


@pytest.mark.parametrize("kind", EVENTS)
def test_every_kind_of_event_is_shown(kind):
    (first, *_) = records(event(kind, 1.0, 3.0, uid=7, engines=2, cpu=1.5))
    assert first["ts"] == 1_000_000
    assert first["ph"] == {"slice": "X", "overlapping": "b", "counter": "C"}[PLACES[kind].shape]


def test_a_slice():
    (record,) = records(event("forward", 1.5, 1.75, "trainer-0", step=4, tokens=12))
    assert record == {
        "ph": "X",
        "cat": "passes",
        "name": "forward",
        "pid": 1,
        "tid": 1,
        "ts": 1_500_000,
        "dur": 250_000,
        "args": {"step": 4, "tokens": 12},
    }


def test_requests_that_overlap_have_ids_of_their_own():
    begun, ended, other, _ = records(generated("3.0#1", 1.0, 3.0), generated("4.1#2", 2.0, 4.0))
    assert (begun["ph"], begun["name"], begun["ts"]) == ("b", "request 3.0#1", 1_000_000)
    assert ended == {key: begun[key] for key in ("cat", "id", "name", "pid", "tid")} | {
        "ph": "e",
        "ts": 3_000_000,
    }
    assert other["id"] != begun["id"]


def test_what_holds_for_a_time_is_a_counter():
    (record,) = records(event("division", 2.0, 3.0, "driver", engines=1, cut=200, why="none"))
    assert (record["ph"], record["args"]) == ("C", {"engines": 1, "cut": 200})
    assert records(event("division", 2.0, 3.0, "driver")) == []


def test_what_a_worker_used_is_a_counter_for_each_unit():
    found = records(event("usage", 2.0, 7.0, cpu=1.5, memory_mib=900, running=3, waiting=0, why="none"))
    assert {each["name"]: each["args"] for each in found} == {
        "processors": {"cpu": 1.5},
        "memory, MiB": {"memory_mib": 900},
        "requests in the engine": {"running": 3, "waiting": 0},
    }
    assert {(each["ph"], each["ts"]) for each in found} == {("C", 2_000_000)}


def test_a_clock_that_was_set_back_makes_no_negative_duration():
    assert records(event("forward", 2.0, 1.0))[0]["dur"] == 0
    begun, ended = records(generated("1.0#1", 2.0, 1.0))
    assert begun["ts"] == ended["ts"]


def test_an_event_of_another_release_is_left_out():
    assert records(event("dreaming", 1.0, 2.0)) == []


def test_workers_and_their_tracks_are_named_once_and_stand_in_the_order_of_pools():
    tracks = Tracks()
    found = [
        record
        for each in (
            event("forward", 0, 1, "trainer-0"),
            event("idle", 0, 1, "fast-0"),
            event("backward", 1, 2, "trainer-0"),
            event("reward", 0, 1, "driver", uid=1),
        )
        for record in tracks.of_event(each)
    ]
    check_format(found)
    assert names(found) == {1: "trainer-0", 2: "fast-0", 3: "rewards"}
    order = {
        each["pid"]: each["args"]["sort_index"] for each in found if each["name"] == "process_sort_index"
    }
    assert sorted(order, key=order.__getitem__) == [3, 1, 2]
    assert [each["args"]["name"] for each in found if each["name"] == "thread_name"] == ["passes", "idle"]


def test_steps_are_slices():
    tracks = Tracks()
    found = [record for window in windows(2.0, 0.5) for record in tracks.of_window(window)]
    check_format(found)
    slices = [(each["name"], each["ts"], each["dur"]) for each in found if each["ph"] == "X"]
    assert slices == [("step 1", 0, 2_000_000), ("step 2", 2_000_000, 500_000)]


def test_metrics_are_counters():
    row = {
        "step": 1,
        "time": 3.0,
        "reward_mean": 0.5,
        "queue_depth": None,
        "busy": {"fast": 0.75, "heavy": None},
    }
    found = list(Tracks().of_metrics(row))
    check_format(found)
    counters = {each["name"]: each["args"] for each in found if each["ph"] == "C"}
    assert counters == {"reward": {"mean": 0.5}, "busy": {"fast": 0.75}}
    assert list(Tracks().of_metrics({"step": 1, "reward_mean": 0.5})) == []
