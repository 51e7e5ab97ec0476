"""A status that was written by another release."""

import pytest

from rljob_api.status import Status
from rljob_api.stored_status import read_status

TRAINING = {"step": 3, "totalSteps": 9, "weightVersion": 3, "released": ["a"], "suspendedAtStep": 3}
CONDITION = {"type": "Complete", "status": "True", "reason": "Done", "lastTransitionTime": "t"}
POOL = {"name": "trainer", "desired": 1}
CASES = {
    "none": (None, {}),
    "no mapping": ([1], {}),
    "of this release": ({"attempt": 2, "training": TRAINING}, {"attempt": 2, "training": TRAINING}),
    "a field": ({"attempt": 2, "quota": {"name": "q"}}, {"attempt": 2}),
    "a field of the runtime's report": ({"training": {**TRAINING, "new": {"a": 1}}}, {"training": TRAINING}),
    "a field of a block of the report": (
        {"training": {**TRAINING, "checkpoint": {"step": 2, "path": "/c", "bytes": 5}}},
        {"training": {**TRAINING, "checkpoint": {"step": 2, "path": "/c"}}},
    ),
    "a value in the report": (
        {"training": {**TRAINING, "tokensPerSecond": "many", "queueDepth": {}}},
        {"training": TRAINING},
    ),
    "a report without what is needed": ({"attempt": 2, "training": {"step": 3}}, {"attempt": 2}),
    "a field of a condition": (
        {"conditions": [{**CONDITION, "severity": "low"}]},
        {"conditions": [CONDITION]},
    ),
    "a condition": (
        {"conditions": [{**CONDITION, "type": "Preempted"}, CONDITION]},
        {"conditions": [CONDITION]},
    ),
    "a pool": ({"pools": [POOL, {"name": "judge", "desired": 1}]}, {"pools": [POOL]}),
    "a phase": ({"phase": "Draining", "attempt": 1}, {"attempt": 1}),
}


@pytest.mark.parametrize(("raw", "known"), CASES.values(), ids=CASES)
def test_what_is_known_is_kept(raw, known):
    assert read_status(raw) == Status.model_validate(known)
