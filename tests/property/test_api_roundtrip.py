"""Properties of manifests: what is written is read, and garbage is refused with a place and a reason."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rljob_api import RLJob
from rljob_api.errors import problems
from rljob_runtime.manifest.source import YamlError, parse
from tests.support.jobs import job
from tests.support.valid_jobs import GOOD

# Zl and Zp are line breaks in YAML 1.1, and a key is one line there.
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Zl", "Zp"]))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXT, inner)), max_leaves=8
)


def paths(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every path in nested mappings."""
    if not isinstance(value, dict):
        return [path]
    return [path, *(below for key, inner in value.items() for below in paths(inner, (*path, key)))]


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD.keys())
def test_a_job_survives_being_written_with_all_defaults(changes):
    parsed = RLJob.model_validate(job(changes))
    written = yaml.safe_dump(json.loads(parsed.model_dump_json(by_alias=True)))
    assert RLJob.model_validate(parse(written).value) == parsed


@given(st.data(), VALUES)
def test_any_value_anywhere_is_accepted_or_named(data, value):
    document = job(data.draw(st.sampled_from(list(GOOD.values()))))
    path = data.draw(st.sampled_from([item for item in paths(document) if item]))
    target = document
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    try:
        RLJob.model_validate(document)
    except ValidationError as error:
        found = problems(error, RLJob)
        assert found
        for problem in found:
            assert problem.message
            assert "\n" not in str(problem)


@given(st.dictionaries(TEXT, VALUES, min_size=1))
def test_json_means_itself(value):
    """JSON is YAML; a manifest written as JSON is read as JSON reads it."""
    assert parse(json.dumps(value, ensure_ascii=False)).value == value


@given(st.text())
def test_any_text_is_read_or_refused_with_a_line(text):
    try:
        parse(text)
    except YamlError as error:
        assert error.faults
        for line, fault in error.faults:
            assert 1 <= line <= len(text.splitlines()) + 1
            assert fault
