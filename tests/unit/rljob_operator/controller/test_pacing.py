"""How soon a job is looked at when its pods change."""

import pytest

from rljob_operator.controller.pacing import gather_seconds

CASES = {
    "it runs": ("Running", False, 1000, 0.05),
    "it is being suspended": ("Suspending", False, 1000, 0.05),
    "its last pod is ready": ("Starting", True, 1000, 0.05),
    "it starts alone": ("Starting", False, 1, 0.2),
    "many start": ("Starting", False, 50, 1.0),
    "very many start": ("Starting", False, 1000, 3.0),
    "it was never looked at": (None, False, 0, 0.2),
}


@pytest.mark.parametrize(("phase", "all_ready", "starting", "seconds"), CASES.values(), ids=CASES)
def test_changes_of_pods_are_taken_together(phase, all_ready, starting, seconds):
    assert gather_seconds(phase, all_ready, starting) == seconds
