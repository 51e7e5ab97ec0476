"""RLJobs under a newer definition: whatever fields it adds, this release reads what it knows."""

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from rljob_api import RLJob
from rljob_api.stored import read_stored
from tests.support.jobs import job
from tests.support.valid_jobs import GOOD

VALUES = st.one_of(
    st.integers(),
    st.text(max_size=3),
    st.none(),
    st.lists(st.integers(), max_size=2),
    st.just({"a": {"b": 1}}),
)
NAMES = st.sampled_from(["addedField", "addedBlock", "addedList"])


def blocks(model, value, path):
    """Every block of the document that the models describe, with its path."""
    yield path, value
    for name, field in type(model).model_fields.items():
        below = getattr(model, name)
        if hasattr(type(below), "model_fields") and field.alias in value:
            yield from blocks(below, value[field.alias], f"{path}.{field.alias}")


@given(st.data())
def test_added_fields_change_nothing_of_what_is_known(data):
    document = job(data.draw(st.sampled_from(list(GOOD.values())), label="job"))
    before = RLJob.model_validate(document)
    # As an API server stores it, and with the defaults of a newer definition.
    stored = before.model_dump(mode="json", by_alias=True)
    there = dict(blocks(before.spec, stored["spec"], "spec"))
    added = data.draw(
        st.dictionaries(st.tuples(st.sampled_from(sorted(there)), NAMES), VALUES, max_size=5), label="added"
    )
    for (path, name), value in added.items():
        there[path][name] = deepcopy(value)
    read = read_stored(RLJob, stored)
    assert read.value == before
    assert read.left_out == tuple(sorted(f"{path}.{name}" for path, name in added))
