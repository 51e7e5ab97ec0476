"""How accelerators are divided."""

import pytest

from rljob_runtime.authoring.pools import PoolSizes, divide, on_cpus


@pytest.mark.parametrize(
    ("accelerators", "per_node", "per_engine", "sizes"),
    [
        (1, 8, 1, (1, 1, 1, 1)),
        (2, 8, 1, (1, 1, 1, 1)),
        (3, 8, 1, (1, 1, 2, 1)),
        (8, 8, 1, (1, 4, 4, 1)),
        (8, 8, 2, (1, 4, 2, 2)),
        (3, 8, 2, (1, 1, 1, 2)),
        (6, 8, 2, (1, 4, 1, 2)),
        (14, 8, 4, (1, 8, 1, 4)),
        (16, 8, 1, (1, 8, 8, 1)),
        (24, 8, 1, (1, 8, 16, 1)),
        (64, 8, 4, (4, 8, 8, 4)),
        (4, 1, 1, (2, 1, 2, 1)),
    ],
)
def test_divide(accelerators, per_node, per_engine, sizes):
    assert divide(accelerators, per_node, per_engine) == PoolSizes(*sizes)


def test_no_accelerator_is_given_twice():
    for accelerators in range(2, 70):
        for per_engine in (1, 2, 4, 8):
            if per_engine < accelerators:
                assert divide(accelerators, 8, per_engine).total <= accelerators


@pytest.mark.parametrize(("workers", "engines"), [(2, 1), (3, 2), (8, 7)])
def test_on_cpus(workers, engines):
    assert on_cpus(workers) == PoolSizes(1, 1, engines, 1)
