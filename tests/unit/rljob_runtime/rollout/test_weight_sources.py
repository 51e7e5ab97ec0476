"""Where engines get a version from."""

from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.rollout.weight_sources import WeightSources


def test_shared_memory_is_one_folder_for_all():
    ref = WeightRef(3, "shm", "/dev/shm/v3")
    assert WeightSources().refs(ref, ["a", "b"], [1, 1]) == [ref, ref]


def test_a_group_is_kept_until_its_engines_change():
    meeting = WeightSources()
    first = meeting.refs(WeightRef(1, "nccl", "h:1"), ["a", "b"], [2, 1])
    assert [ref.location for ref in first] == ["h:1/4/1", "h:1/4/3"]
    again = meeting.refs(WeightRef(2, "nccl", "h:2"), ["a", "b"], [2, 1])
    assert [(ref.version, ref.location) for ref in again] == [(2, "h:1/4/1"), (2, "h:1/4/3")]
    changed = meeting.refs(WeightRef(3, "nccl", "h:3"), ["a", "c"], [2, 1])
    assert [ref.location for ref in changed] == ["h:3/4/1", "h:3/4/3"]


def test_a_group_ends_with_the_processes_of_its_sender():
    meeting = WeightSources()
    meeting.refs(WeightRef(1, "nccl", "h:1"), ["a"], [1], start=1)
    for version, place in ((2, "h:2/2/1"), (3, "h:2/2/1")):
        [ref] = meeting.refs(WeightRef(version, "nccl", f"h:{version}"), ["a"], [1], start=2)
        assert ref.location == place


def test_a_group_that_broke_is_not_met_again():
    meeting = WeightSources()
    meeting.refs(WeightRef(1, "nccl", "h:1"), ["a"], [1])
    meeting.forget()
    assert [ref.location for ref in meeting.refs(WeightRef(2, "nccl", "h:2"), ["a"], [1])] == ["h:2/2/1"]


def test_nobody_meets_nowhere():
    meeting = WeightSources()
    assert meeting.refs(WeightRef(1, "nccl", "h:1"), [], []) == []
    meeting.forget()
    assert meeting.refs(WeightRef(2, "nccl", "h:2"), [], []) == []
