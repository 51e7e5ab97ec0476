"""How workers' time is split."""

import pytest

from rljob_runtime.trace.analyse.usage import KINDS, WorkerUse, event_shares, pool_uses, role_of
from rljob_runtime.trace.record.event_log import Event
from tests.support.runtime.events import event, windows


@pytest.mark.parametrize(
    ("events", "split"),
    [
        ([], {"idle": 10.0}),
        ([("generate", 0, 4), ("generate", 2, 6)], {"work": 6.0, "idle": 4.0}),
        ([("generate", 0, 8), ("weight_load", 3, 5)], {"work": 6.0, "sync": 2.0, "idle": 2.0}),
        ([("weight_pause", 8, 9), ("weight_load", 9, 12)], {"sync": 2.0, "idle": 8.0}),
        ([("idle", 0, 5), ("queue_wait", 0, 9), ("admission_wait", 0, 9), ("reward", 0, 9)], {"idle": 10.0}),
        ([("get", 0, 1), ("forward", 1, 2), ("backward", 2, 4), ("checkpoint", 4, 9)],
         {"move": 1.0, "work": 3.0, "save": 5.0, "idle": 1.0}),
    ],
    ids=["nothing", "overlap", "stands still", "beyond the end", "waiting", "trainer"],
)  # fmt: skip
def test_a_workers_time_is_split_without_rest(
    events: list[tuple[str, float, float]], split: dict[str, float]
) -> None:
    use = WorkerUse("fast-0", "fast", first=0.0)
    use.add([event(name, start, end) for name, start, end in events])
    assert use.split(0.0, 10.0) == pytest.approx(dict.fromkeys(KINDS, 0.0) | split)


@pytest.mark.parametrize(
    ("split", "totals", "shares"),
    [
        ({"work": 0.6, "idle": 0.4}, {"forward": 10.0, "backward": 20.0, "idle": 99.0},
         {"forward": 0.2, "backward": 0.4, "idle": 0.4}),
        ({"work": 0.5, "sync": 0.1, "idle": 0.4}, {"generate": 1000.0, "weight_load": 3.0, "idle": 1.0},
         {"generate": 0.5, "weight_load": 0.1, "idle": 0.4}),
        ({"move": 0.01}, {"put": 5.0, "reward": 500.0}, {"put": 0.01}),
        ({}, {"forward": 0.0}, {"forward": 0.0}),
    ],
    ids=["by seconds", "at once", "no worker's time", "nothing"],
)  # fmt: skip
def test_events_divide_the_time_of_their_kind(
    split: dict[str, float], totals: dict[str, float], shares: dict[str, float]
) -> None:
    assert event_shares(dict.fromkeys(KINDS, 0.0) | split, totals) == pytest.approx(shares)


def test_a_worker_that_joins_late_is_not_idle_before() -> None:
    use = WorkerUse("fast-1", "fast")
    use.add([event("generate", 8.0, 10.0)])
    assert use.split(0.0, 10.0)["idle"] == 0.0
    assert sum(use.split(0.0, 5.0).values()) == 0.0


def updates(worker: str, *times: float) -> list[Event]:
    return [event("weight_load", time, time + 1.0, worker) for time in times]


def test_a_worker_that_left_is_not_idle_afterwards() -> None:
    """Of three engines one leaves after 10 s, its pool being made smaller; one is only idle at the end."""
    stays, idles, leaves = (WorkerUse(f"fast-{number}", "fast") for number in range(3))
    stays.add([event("generate", 0.0, 100.0), *updates("fast-0", 5.0, 30.0, 60.0, 90.0)])
    idles.add([event("generate", 0.0, 20.0), *updates("fast-1", 5.0, 30.0, 60.0, 90.0)])
    leaves.add([event("generate", 0.0, 10.0), *updates("fast-2", 5.0)])
    (pool,) = pool_uses([stays, idles, leaves], windows(50.0, 50.0))
    assert leaves.split(0.0, 100.0)["idle"] == 0.0 and sum(leaves.split(50.0, 100.0).values()) == 0.0
    assert idles.split(0.0, 100.0)["idle"] == pytest.approx(77.0)
    assert pool.seconds == pytest.approx(210.0)
    assert pool.overall["idle"] == pytest.approx(77.0 / 210.0)


def test_a_rank_that_left_is_not_idle_afterwards() -> None:
    stays, leaves = WorkerUse("trainer-0", "trainer"), WorkerUse("trainer-1", "trainer")
    stays.add([event("optimizer", time, time + 1.0, "trainer-0") for time in (0.0, 10.0, 20.0)])
    leaves.add([event("optimizer", 0.0, 1.0, "trainer-1")])
    pool_uses([stays, leaves], windows(30.0))
    assert leaves.split(0.0, 30.0)["idle"] == 0.0 and stays.split(0.0, 30.0)["idle"] == 27.0


def test_an_engine_that_only_misses_the_newest_update_is_still_there() -> None:
    one, other = WorkerUse("fast-0", "fast"), WorkerUse("fast-1", "fast")
    one.add(updates("fast-0", 0.0, 10.0))
    other.add(updates("fast-1", 0.0))
    pool_uses([one, other], windows(20.0))
    assert other.split(0.0, 20.0)["idle"] == 19.0


def test_pools_know_their_roles_and_shares() -> None:
    trainer, engine = WorkerUse("trainer-0", "trainer"), WorkerUse("fast-0", "fast")
    trainer.add([event("optimizer", 0.0, 1.0, "trainer-0")])
    engine.add([event("generate", 0.0, 3.0)])
    pools = pool_uses([engine, trainer], windows(2.0, 2.0))
    assert [(pool.pool, pool.role) for pool in pools] == [("trainer", "trainer"), ("fast", "engine")]
    assert [pool.overall["work"] for pool in pools] == pytest.approx([0.25, 0.75])
    assert [share["work"] for share in pools[1].by_step] == pytest.approx([1.0, 0.5])
    assert role_of({"reward", "put"}) == "other"
