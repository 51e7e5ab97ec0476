"""What the variants of a trainer's step leave off is there to be left off."""

import argparse

import pytest

from rljob_api.compute import Compute
from rljob_api.schedule import Profiling
from tests.bench.trainer_step import GAINS, all_variants, job, without
from tests.bench.trainer_step_shapes import SHAPES

EVERY = frozenset(GAINS)
VARIANTS = {
    "all": EVERY,
    "base": frozenset[str](),
    **{f"no-{gain}": EVERY - {gain} for gain in GAINS},
    **{f"only-{gain}": frozenset({gain}) for gain in GAINS},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_entered_and_leaves_all_as_it_was(variant: str) -> None:
    from rljob_runtime.trainer import policy, rank, step

    def found() -> tuple[object, ...]:
        return policy._is_plain, rank.Phases, step.Prefetched

    before = found()
    with without(VARIANTS[variant]):
        pass
    assert found() == before


def test_the_defaults_are_those_of_a_job_that_says_nothing() -> None:
    options = argparse.Namespace(without=[], micro_batch=None, logits_mib=None, recompute=False)
    found = all_variants(options)
    of = {name: job(SHAPES["tiny"], on, options).spec.training for name, on in found.items()}
    assert (of["defaults"].compute, of["defaults"].profiling) == (Compute(), Profiling())
    assert of["all"].compute != Compute()
    assert "defaults" not in all_variants(argparse.Namespace(without=["compile"])), "which leaves nothing off"
