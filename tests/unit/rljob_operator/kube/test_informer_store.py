"""What an informer knows, and whom it wakes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.kube.informer_store import InformerStore

A, B, C = ("team", "a"), ("team", "b"), ("team", "c")


@pytest.fixture
def store():
    """Two objects of job 1, one of job 2."""
    store = InformerStore()
    store.put(A, "job-1", 1)
    store.put(B, "job-1", 2)
    store.put(C, "job-2", 3)
    return store


@pytest.mark.parametrize(
    ("change", "woken", "job_1", "job_2"),
    [
        (lambda store: store.put(A, "job-1", 1), [], {A: 1, B: 2}, {C: 3}),
        (lambda store: store.put(A, "job-1", 9), ["job-1"], {A: 9, B: 2}, {C: 3}),
        (lambda store: store.put(A, "job-2", 1), ["job-1", "job-2"], {B: 2}, {A: 1, C: 3}),
        (lambda store: store.put(("x", "a"), "job-2", 1), ["job-2"], {A: 1, B: 2}, {C: 3, ("x", "a"): 1}),
        (lambda store: store.drop(C), ["job-2"], {A: 1, B: 2}, {}),
        (lambda store: store.drop(("x", "a")), [], {A: 1, B: 2}, {C: 3}),
        (lambda store: store.retain({A, B, C}), [], {A: 1, B: 2}, {C: 3}),
        (lambda store: store.retain({B}), ["job-1", "job-2"], {B: 2}, {}),
        (lambda store: store.retain(set()), ["job-1", "job-2"], {}, {}),
    ],
)
def test_a_change_wakes_whom_it_concerns(store, change, woken, job_1, job_2):
    assert change(store) == woken
    assert (dict(store.of("job-1")), dict(store.of("job-2"))) == (job_1, job_2)
    assert len(store) == len(job_1) + len(job_2)
    assert set(store.owners()) == {name for name, held in (("job-1", job_1), ("job-2", job_2)) if held}


KEYS = st.sampled_from([A, B, C])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.sampled_from(["job-1", "job-2"]), st.integers(0, 2)),
        st.tuples(st.just("drop"), KEYS),
        st.tuples(st.just("retain"), st.sets(KEYS)),
    )
)


@given(STEPS)
def test_exactly_those_are_woken_whose_objects_differ(steps):
    store, model = InformerStore(), {}
    for name, *arguments in steps:
        before = dict(model)
        if name == "put":
            key, owner, value = arguments
            model[key] = (owner, value)
        else:
            kept = arguments[0] if name == "retain" else model.keys() - set(arguments)
            model = {key: held for key, held in model.items() if key in kept}
        woken = getattr(store, name)(*arguments)
        assert sorted(woken) == [
            owner for owner in ("job-1", "job-2") if owned(before, owner) != owned(model, owner)
        ]
        assert all(store.of(owner) == owned(model, owner) for owner in ("job-1", "job-2"))


def owned(model, owner):
    return {key: value for key, (its_owner, value) in model.items() if its_owner == owner}
