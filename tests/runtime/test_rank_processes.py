"""What a test is told of a rank that gives no result."""

import threading
from pathlib import Path
from unittest.mock import patch

from tests.support.runtime import rank_processes
from tests.support.runtime.rank_processes import RankProcesses

RANKS = 1


def _answer(rank: int, world_size: int, store: Path) -> int:
    return rank


def _wait_for_ever(rank: int, world_size: int, store: Path) -> None:
    threading.Event().wait()


def test_where_it_was_is_told_and_it_is_started_again(ranks: RankProcesses) -> None:
    assert ranks.run(1, _answer) == [0]
    with patch.object(rank_processes, "_SECONDS", 1.0):
        [(done, told)] = ranks.outcomes(1, _wait_for_ever)
    assert not done
    assert told.startswith("no result in 1 s") and "in _wait_for_ever" in told
    assert ranks.run(1, _answer) == [0]
