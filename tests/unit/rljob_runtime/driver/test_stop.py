"""What a job that is asked to stop says that it does."""

import pytest

from rljob_runtime.driver.stop import Standing, what_a_stop_does


@pytest.mark.parametrize(
    ("standing", "told"),
    [
        (Standing(begun=False), "stopping before the first step: nothing is trained yet"),
        (Standing(begun=True), "stopping before the first step: nothing is trained yet"),
        (Standing(begun=True, training=True), "stopping after this step, with a checkpoint"),
        (
            Standing(begun=True, steps=5, saved=3, training=True),
            "stopping after this step, with a checkpoint",
        ),
        (Standing(begun=True, steps=5, saved=3), "stopping, with a checkpoint"),
        (Standing(begun=True, steps=5), "stopping, with a checkpoint"),
        (
            Standing(begun=True, steps=5, saved=5),
            "stopping; the checkpoint of step 5 has all that is trained",
        ),
        (
            Standing(begun=False, steps=5, saved=5),
            "stopping; the checkpoint of step 5 has all that is trained",
        ),
        (Standing(begun=True, steps=5, saved=5, trained=True), "ending"),
    ],
)
def test_what_a_stop_does(standing: Standing, told: str) -> None:
    assert what_a_stop_does(standing) == told
