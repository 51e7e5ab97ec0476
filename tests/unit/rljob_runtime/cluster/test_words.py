"""What keeps a run from going on is told in words for kubectl."""

import errno

from rljob_api.schedule import Schedule
from rljob_runtime.cluster.words import in_a_cluster
from rljob_runtime.data.fingerprint import DataFingerprint, difference
from rljob_runtime.driver.resume import beyond
from rljob_runtime.driver.run import _one_line
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.manifest.same_model import other_adapter, other_weights
from rljob_runtime.trainer.checkpoint_tensors import _explain
from tests.support.runtime.resumes import saved

DATA = DataFingerprint("a.jsonl", 8, "c", "u", "in order")
AGAIN = "go on by deleting the RLJob and applying it again"
ANEW = "or begin anew as an RLJob of another name"


def test_other_data():
    said = in_a_cluster(str(difference(DATA, DataFingerprint("a.jsonl", 9, "d", "u", "in order"))))
    assert said.endswith(f"put the earlier data back to {AGAIN}, {ANEW}")


def test_fewer_steps_than_were_trained():
    said = in_a_cluster(str(beyond(saved(4, Ledger(), []), Schedule(total_steps=3), 8)))
    assert said.endswith(f"set it to 4 or more to {AGAIN}, {ANEW}")


def test_another_model():
    said = in_a_cluster(str(other_adapter("rank 4", None)))
    assert said.endswith(f"set it back to {AGAIN}, {ANEW}.")
    said = in_a_cluster(str(other_weights("path", "/models/m", "to which its adapter belongs", there=True)))
    assert said.endswith(f"put those back to {AGAIN}, {ANEW}.")


def test_a_full_disk(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device", "/runs/x")
    assert in_a_cluster(_one_line(full)) == f"/runs/x: No space left on device: make room, and {AGAIN}"
    assert in_a_cluster(_explain(tmp_path, 3, "No space left on device")).endswith(f"and {AGAIN}")
