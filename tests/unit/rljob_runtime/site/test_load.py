"""What the status tells of busy pools, and which changes of it are worth a write of their own."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.status import LoadStatus, PoolLoad
from rljob_runtime.site.load import load_of, worth_telling
from rljob_runtime.view.progress import Progress
from tests.support.runtime.steps import HEADER

BUSY = Progress(
    HEADER, step=3, total_steps=10, busy={"fast": 0.926, "heavy": 0.971, "trainer": 0.8749},
    busy_seconds=61.7, running={"fast": 120, "heavy": 16}, waiting=8,
)  # fmt: skip


def test_shares_and_requests_of_each_pool() -> None:
    assert load_of(BUSY) == LoadStatus(
        window_seconds=62,
        pools=[
            PoolLoad(name="trainer", busy_percent=87),
            PoolLoad(name="fastRollout", busy_percent=93, running=120),
            PoolLoad(name="heavyRollout", busy_percent=97, running=16),
        ],
        waiting=8,
        summary="87/93/97",
    )


@pytest.mark.parametrize(
    ("busy", "summary"),
    [
        ({"trainer": 0.0, "fast": 1.0, "heavy": 1.0}, "0/100/100"),
        ({"trainer": 0.5, "fast": 0.5}, "50/50/-"),
        ({"trainer": 0.5, "heavy": 0.5}, "50/-/50"),
        ({"trainer": 0.004}, "0/-/-"),
    ],
)
def test_the_column_keeps_the_order_of_the_pools(busy: dict[str, float], summary: str) -> None:
    told = load_of(replace(BUSY, busy=busy))
    assert told is not None and told.summary == summary


def test_nothing_is_told_before_anything_is_measured() -> None:
    assert load_of(replace(BUSY, busy={}, running={})) is None


def told(trainer: int | None = 50, fast: int | None = 90, running: int = 40, waiting: int = 8) -> LoadStatus:
    pools = [PoolLoad(name="trainer", busy_percent=trainer)]
    if fast is not None:
        pools.append(PoolLoad(name="fastRollout", busy_percent=fast, running=running))
    return LoadStatus(window_seconds=60, pools=pools, waiting=waiting)


@pytest.mark.parametrize(
    ("change", "worth"),
    [
        ({}, False),
        ({"fast": 91}, False),
        ({"fast": 86, "trainer": 54}, False),
        ({"fast": 85}, True),
        ({"fast": 95}, True),
        ({"trainer": 45}, True),
        ({"trainer": None}, True),
        ({"fast": None}, True),
        ({"running": 31}, False),
        ({"running": 30}, True),
        ({"running": 53}, False),
        ({"running": 54}, True),
        ({"waiting": 7}, False),
        ({"waiting": 6}, True),
        ({"waiting": 0}, True),
    ],
    ids=str,
)
def test_only_a_noticeable_change_is_worth_a_write(change: dict[str, Any], worth: bool) -> None:
    assert worth_telling(told(), told(**change)) is worth
    assert worth_telling(told(**change), told()) is worth


def test_the_first_and_the_last_are_worth_one() -> None:
    assert worth_telling(None, told())
    assert worth_telling(told(), None)
    assert not worth_telling(None, None)


def test_a_longer_window_alone_is_not() -> None:
    assert not worth_telling(told(), told().model_copy(update={"window_seconds": 600}))
