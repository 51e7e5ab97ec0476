"""How many workers the trainer is to run on."""

from dataclasses import replace

import pytest

from rljob_operator.plan.observed import CreationFailure
from rljob_operator.plan.plan import ScaleGroup
from rljob_runtime.driver.trainer_size import trainer_size
from rljob_runtime.site.desired import DesiredState, desired_state_of
from tests.support.operator.observations import at, observe, planned, running, said, said_of, spec

AWAY, SEEN = 1, 2
"""Generations that the operator has acted on; the RLJob is at 2."""


@pytest.mark.parametrize(
    ("asked", "operator_at", "resize", "refused", "so_far", "placed", "there", "size"),
    [
        (2, SEEN, None, True, 1, 1, 1, 1),
        (2, AWAY, None, False, 1, 1, 1, 1),
        (1, AWAY, None, False, 2, 2, 2, 2),
        (2, SEEN, 2, False, 1, 1, 1, 2),
        (1, SEEN, 1, True, 2, 2, 2, 1),
        (2, AWAY, 2, False, 1, 1, 1, 2),
        (3, AWAY, 2, False, 1, 1, 1, 1),
        (3, AWAY, 2, False, 2, 1, 1, 2),
        (3, SEEN, 1, True, 2, 2, 2, 1),
        (1, AWAY, 2, False, 2, 1, 1, 2),
        (1, SEEN, None, False, 2, 1, 1, 1),
        (2, SEEN, None, False, 2, 1, 1, 2),
        (2, SEEN, None, False, 1, 1, 2, 2),
        (3, SEEN, None, True, 1, 2, 2, 2),
        (3, SEEN, None, True, 1, 2, 1, 1),
        (2, AWAY, None, False, 0, 0, 1, 2),
        (3, SEEN, 1, True, 0, 0, 2, 1),
    ],
    ids=[
        "refused to grow", "not seen", "smaller, not seen", "grows", "smaller, while refused",
        "grows, status of another field not yet written", "another size, not seen",
        "another size, not seen, while one is under way", "smaller, and then refused to grow",
        "back, not seen", "back, seen before the pool was touched", "grown, and pods are to come",
        "grown without a stop", "refused after a smaller size was withdrawn",
        "refused after it was made smaller", "first start", "first start, refused to grow",
    ],
)  # fmt: skip
def test_a_size(
    asked: int, operator_at: int, resize: int | None, refused: bool, so_far: int, placed: int, there: int,
    size: int,
) -> None:  # fmt: skip
    desired = DesiredState(2, asked, 1, 0, operator_at=operator_at, trainer_resize=resize, refused=refused)
    assert trainer_size(desired, so_far, placed, there) == size


def test_on_one_machine_the_manifest_decides() -> None:
    desired = DesiredState(0, trainer=2, fast=1, heavy=0)
    assert (trainer_size(desired, 0, 0, 2), trainer_size(desired, 2, 2, 1)) == (2, 2)


@pytest.mark.parametrize(
    ("resize", "so_far", "placed", "there", "size"),
    [(2, 2, 1, 1, 1), (1, 1, 2, 2, 2), (2, 1, 1, 1, 1), (2, 0, 0, 1, 2), (1, 1, 3, 2, 1), (2, 1, 1, 0, 2)],
    ids=["grows", "smaller", "before the trainer stopped", "first start", "a part is done", "a pod is lost"],
)
def test_a_resize_that_may_not_be_made_lets_training_go_on(
    resize: int, so_far: int, placed: int, there: int, size: int
) -> None:
    desired = DesiredState(2, resize, 1, 0, operator_at=SEEN, trainer_resize=resize, resize_refused=True)
    assert trainer_size(desired, so_far, placed, there) == size
    allowed = replace(desired, resize_refused=False)
    assert trainer_size(allowed, size, placed, there) == resize


@pytest.mark.parametrize(
    ("before", "asked", "refused", "size"),
    [(1, 2, False, 2), (1, 2, True, 1), (2, 1, False, 1), (2, 1, True, 1), (2, 2, True, 2)],
    ids=["grows", "refused to grow", "smaller", "smaller, while refused", "as it was, while refused"],
)
def test_what_the_operator_says_of_a_size_is_understood(
    before: int, asked: int, refused: bool, size: int
) -> None:
    observed = running((before, 1, 0))
    wish = spec(pools=(asked, 1, 0))
    invalid = "spec.storage.volume: is needed" if refused else None
    observed = replace(observed, job=replace(observed.job, spec=wish, generation=2, invalid=invalid))
    status = planned(observed, 70).status
    found = {
        "metadata": {"name": "math", "generation": 2},
        "spec": wish.model_dump(mode="json", by_alias=True),
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    assert trainer_size(desired_state_of(found), before, before, before) == size


@pytest.mark.parametrize(("before", "asked"), [(1, 2), (2, 1)], ids=["grows", "smaller"])
def test_a_refused_patch_is_understood(before: int, asked: int) -> None:
    """The trainer has stopped, and the API server refuses to change the RayCluster: it goes on at once."""
    observed = running((before, 1, 0))
    wish = spec(pools=(asked, 1, 0))
    observed = replace(observed, job=replace(observed.job, spec=wish, generation=2))
    stopped = said(trainer_stopped_for=asked, observed_generation=2)
    patching = observe(observed, planned(observed, 70), training=stopped)
    plan = planned(patching, 71)
    assert [type(each) for each in plan.actions] == [ScaleGroup]
    refused = CreationFailure("math-1", "RayClusterRefused", "The API server refuses it: no.", at(101))
    told = planned(observe(patching, plan, creation_failure=refused), 72)
    assert told.actions == () and told.requeue_after == 29
    assert said_of(told, "Running")[2] == (
        "Attempt 1 runs. The API server refuses it: no; tried again every half minute."
    )
    found = {
        "metadata": {"name": "math", "generation": 2},
        "spec": wish.model_dump(mode="json", by_alias=True),
        "status": told.status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    desired = desired_state_of(found)
    assert desired.doomed == frozenset()
    assert trainer_size(desired, asked, before, before) == before
