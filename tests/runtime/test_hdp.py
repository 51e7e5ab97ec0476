"""Samples shared by ranks: gradients must be those of one process, whatever ranks share which samples."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rljob_runtime.parallel.hdp_plan import Plan, PlannedBatch
from tests.support.runtime.hdp_steps import Case, lengths, take_step, worst
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.tiny_models import tiny_model

EXACT = 1e-14

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    started = RankProcesses(4)
    yield started
    started.close()


def fixed(case: Case, world_size: int, degree: int) -> tuple[Plan, ...]:
    """Plans where the first `degree` ranks share all samples of a batch."""
    plans = []
    for batch in lengths(case):
        shared = PlannedBatch(0, degree, tuple(range(len(batch))))
        plans.append(Plan(tuple((shared,) if rank < degree else () for rank in range(world_size)), 0.0))
    return tuple(plans)


@pytest.mark.parametrize("attention", ["allGather", "ulysses"])
def test_two_ranks_share_every_sample(ranks: RankProcesses, tmp_path: Path, attention: str) -> None:
    case = Case(tiny_model(tmp_path / "model"))
    metrics, gradients = ranks.run(1, take_step, case)[0]
    shared = ranks.run(2, take_step, replace(case, plans=fixed(case, 2, 2), attention=attention))[0]
    assert worst(shared[1], gradients) <= EXACT
    assert (shared[0].tokens, shared[0].response_tokens) == (metrics.tokens, metrics.response_tokens)
    np.testing.assert_allclose(shared[0].loss, metrics.loss, rtol=1e-6)
