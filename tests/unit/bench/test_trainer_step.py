"""What the variants of a trainer's step leave off is there to be left off."""

import pytest

from tests.bench.trainer_step import GAINS, without

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
