"""Pools that are made smaller while everything else goes wrong."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import examples
from tests.support.operator.simulated_resizes import with_the_operator

SEEDS = st.integers(0, 2**32 - 1)


@given(seed=SEEDS)
@settings(max_examples=examples(500), deadline=None)
def test_only_released_and_unstarted_pods_are_removed(seed):
    run = with_the_operator(seed)
    assert not [killed for killed in run.world.killed if killed.busy or killed.late or not killed.named]


@given(seed=SEEDS)
@settings(max_examples=examples(100), deadline=None)
def test_the_pools_get_their_sizes_even_where_kuberays_watches_are_out_of_order(seed):
    with_the_operator(seed, causal=False)
