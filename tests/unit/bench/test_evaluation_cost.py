"""What evaluations cost training, on a job small enough for a test."""

from tests.bench.evaluation_cost import COMPUTE_BOUND, Case, cost


def test_training_is_slowed_by_no_more_than_the_evaluations_tokens() -> None:
    found = cost(
        Case(every=5, prompts=16, timing=COMPUTE_BOUND, train_seconds=5, first=5, counted=5, groups=4)
    )
    assert found.own > 0.05
    assert -0.02 <= found.slower <= found.own + 0.02
