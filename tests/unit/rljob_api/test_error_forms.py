"""What is said about each kind of error, for kinds of fields that the RLJob need not have today."""

from datetime import datetime
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypedDict

from rljob_api.base import Model, Rule, form
from rljob_api.errors import Problem, nearest, problems, unwrap, yaml_fields


class Inner(Model):
    count: int = 0


class Weight(Model):
    grams: int
    """The weight of X."""


class Point(TypedDict):
    x: int
    unit: Literal["cm", "mm"]


class Made(Model):
    size: int
    """How many there are,
    all together. Counted once."""
    word: str = Field("ab", min_length=2, pattern="^[a-z]+$")
    when: datetime | None = None
    level: Literal["low", "high"] = "low"
    only: Literal["Yes"] = "Yes"
    either: int | str = 0
    free: dict[str, int] = {}
    inner: Inner = Inner()
    parts: list[Inner] = []
    weights: list[Weight] = []
    weight: Weight | None = None
    words: list[Annotated[str, Field(pattern="^[a-z]+$")]] = []
    levels: list[Literal["low", "high"]] = []
    point: Point | None = None
    some: list[int] = Field([1], min_length=1, max_length=3)
    pair: list[int] = Field([1, 2], min_length=2)
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("inner.count must not be 13", "", lambda made: made.inner.count != 13, ("inner.count",)),
    )


class Bare(Model):
    needed: int


LONGEST = "x" * 58
"""With its quotes, the longest text that is shown whole."""


def told(document: object, model: type[Model] = Made) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(document)
    return [str(problem) for problem in problems(caught.value, model)]


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({"word": "a"}, ["word: is shorter than 2."]),
        ({"word": "A b"}, ["word: must be of the form ^[a-z]+$ (found 'A b')."]),
        ({"when": 3}, ["when: input should be a valid datetime (found 3)."]),
        (
            {"level": "hihg"},
            ["level: 'hihg' is not allowed; it must be one of low, high. Did you mean high?"],
        ),
        ({"only": "yes"}, ["only: 'yes' is not allowed; it must be Yes."]),
        ({"only": LONGEST}, [f"only: '{LONGEST}' is not allowed; it must be Yes."]),
        ({"only": f"{LONGEST}y"}, [f"only: '{'x' * 56}... is not allowed; it must be Yes."]),
        (
            {"either": 1.5},
            [
                "either.int: must be a whole number (found 1.5).",
                "either.str: must be a string (found 1.5): quote it.",
            ],
        ),
        ({"free": {"a": "b"}}, ["free.a: must be a whole number (found 'b')."]),
        ({"inner": {"cuont": 1}}, ["inner.cuont: unknown field. Did you mean count?"]),
        ({"parts": [{"qqq": 1}]}, ["parts[0].qqq: unknown field (known here: count)."]),
        ({"weight": {}}, ["weight.grams: must be set (The weight of X)."]),
        ({"weights": [{}]}, ["weights[0].grams: must be set (The weight of X)."]),
        ({"words": ["a", "A"]}, ["words[1]: must be of the form ^[a-z]+$ (found 'A')."]),
        ({"some": []}, ["some: must not be empty."]),
        ({"some": [1, 2, 3, 4]}, ["some: may have 3 at most (found 4)."]),
        ({"pair": [1]}, ["pair: needs 2 (found 1)."]),
        ({"levels": ["mid"]}, ["levels[0]: 'mid' is not allowed; it must be one of low, high."]),
        ({"point": {"unit": "mm"}}, ["point.x: must be set."]),
        (
            {"point": {"x": 1, "unit": "km"}},
            ["point.unit: 'km' is not allowed; it must be 'cm' or 'mm'."],
        ),
        ({"free": b"AB"}, ["free: must be a mapping (found b'AB')."]),
        ({"inner": {"count": 13}}, ["inner.count: inner.count must not be 13 (inner.count is 13)."]),
        ({"parts": [{"count": "z"}]}, ["parts[0].count: must be a whole number (found 'z')."]),
        (
            {"qqq": 1},
            [
                "qqq: unknown field (known here: either, free, inner, level, levels, only, pair, parts, "
                "point, size, some, weight, weights, when, word, words)."
            ],
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_kind_of_error_in_one_line(fields, lines):
    assert told({"size": 1, **fields}) == lines


def test_a_broken_rule_has_the_path_of_its_first_field():
    with pytest.raises(ValidationError) as caught:
        Made(size=1, inner=Inner(count=13))
    assert [problem.path for problem in problems(caught.value, Made)] == [("inner", "count")]


def test_fields_without_an_alias_have_yaml_names_too():
    class Plain(BaseModel):
        some_size: int = 0

    assert list(yaml_fields(Plain)) == ["someSize"]


class Chosen(Model):
    kind: Literal["low", "high"]
    rate: float = 1.0


def test_a_choice_that_is_missing_names_what_there_is_to_choose_from():
    assert told({}, Chosen) == ["kind: must be set to one of low, high."]


def test_a_quoted_number_is_told_as_one():
    found = told({"kind": "low", "rate": "1.5"}, Chosen)
    assert found == ["rate: must be a number (found '1.5'): write it without quotes."]


def test_what_is_missing_is_described_by_its_first_sentence_where_it_has_one():
    assert told({}) == ["size: must be set (How many there are, all together)."]
    assert told({}, Bare) == ["needed: must be set."]


@pytest.mark.parametrize(("document", "found"), [(3, "3"), ([], "a list"), (True, "true"), (None, "nothing")])
def test_a_document_that_is_no_mapping_has_no_path(document, found):
    assert told(document) == [f"must be a mapping (found {found})."]


def test_a_problem_without_a_path_or_a_suggestion():
    assert str(Problem((), "cannot be read")) == "cannot be read."
    assert str(Problem(("a", 1), "is odd", "even")) == "a[1]: is odd. Did you mean even?"


def test_a_key_with_line_ends_or_control_characters_stays_in_its_line():
    path = ("spec", "a\nb: valid\x1b[8m\u202e\ud800", "größe 😀")
    assert str(Problem(path, "is odd")) == r"spec.a\nb: valid\x1b[8m\u202e\ud800.größe 😀: is odd."


def test_the_nearest_word_is_near():
    assert nearest("stepz", ["steps", "step", "stop"]) == "step"
    assert nearest("abcde", ["abcxy"]) is None, "three letters of five are not enough"


@pytest.mark.parametrize(
    ("annotation", "inner"),
    [(int | None, int), (int | str, int | str), (int, int), (int | str | None, int | str | None)],
)
def test_a_type_that_may_be_missing(annotation, inner):
    assert unwrap(annotation) == inner


def test_a_pattern_in_words_stands_in_the_schema():
    assert form("a name") == {"form": "a name"}
