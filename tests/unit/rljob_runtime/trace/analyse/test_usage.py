"""How workers' time is split."""

import pytest

from rljob_runtime.trace.analyse.usage import KINDS, WorkerUse, event_shares, pool_uses, role_of
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


def test_pools_know_their_roles_and_shares() -> None:
    trainer, engine = WorkerUse("trainer-0", "trainer"), WorkerUse("fast-0", "fast")
    trainer.add([event("optimizer", 0.0, 1.0, "trainer-0")])
    engine.add([event("generate", 0.0, 3.0)])
    pools = pool_uses([engine, trainer], windows(2.0, 2.0))
    assert [(pool.pool, pool.role) for pool in pools] == [("trainer", "trainer"), ("fast", "engine")]
    assert [pool.overall["work"] for pool in pools] == pytest.approx([0.25, 0.75])
    assert [share["work"] for share in pools[1].by_step] == pytest.approx([1.0, 0.5])
    assert role_of({"reward", "put"}) == "other"
