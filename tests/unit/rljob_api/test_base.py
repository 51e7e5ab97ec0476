"""What every model has: YAML names, rules of its own and of its bases, and values in the words of a rule."""

from typing import ClassVar

import pytest
from pydantic import ValidationError

from rljob_api.base import Model, OneOf, Rule, describe, python_name, value_at


class Limits(Model):
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "lowMark must not be above highMark",
            "self.lowMark <= self.highMark",
            lambda limits: limits.low_mark <= limits.high_mark,
            ("lowMark", "highMark"),
        ),
    )
    low_mark: int = 0
    high_mark: int = 9
    tags: list[str] = []


class NamedLimits(Limits):
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("a tank has a name", "self.name != ''", lambda limits: limits.name != "", ("name",)),
    )
    name: str = ""


class Source(OneOf):
    one_of: ClassVar[tuple[str, ...]] = ("local_file", "remote_url")
    local_file: str | None = None
    remote_url: str | None = None


class Job(Model):
    limits: Limits | None = None
    source: Source = Source(local_file="f")


def test_rules_of_a_base_come_before_a_models_own():
    assert [rule.message for rule in NamedLimits.all_rules()] == [
        "lowMark must not be above highMark",
        "a tank has a name",
    ]
    with pytest.raises(ValidationError) as caught:
        NamedLimits(low_mark=10)
    told = caught.value.errors()[0]
    assert told["type"] == "rules"
    assert told["msg"] == (
        "lowMark must not be above highMark (lowMark is 10, highMark is 9); a tank has a name (name is )"
    )
    assert told["ctx"]["broken"] == [
        ("lowMark", "lowMark must not be above highMark (lowMark is 10, highMark is 9)"),
        ("name", "a tank has a name (name is )"),
    ]


@pytest.mark.parametrize(
    ("members", "found"),
    [({}, "none"), ({"local_file": "f", "remote_url": "u"}, "localFile and remoteUrl")],
)
def test_a_union_says_what_it_found(members, found):
    with pytest.raises(ValidationError) as caught:
        Source(**members)
    assert caught.value.errors()[0]["ctx"]["broken"] == [
        ("", f"set exactly one of localFile, remoteUrl (found {found})")
    ]


def test_a_unions_rule_for_the_api_server_names_its_members():
    assert Source.all_rules()[0].cel == "[has(self.localFile), has(self.remoteUrl)].filter(x, x).size() == 1"


@pytest.mark.parametrize(
    ("members", "choice", "yaml"),
    [
        ({"local_file": "f"}, ("local_file", "f"), "localFile"),
        ({"remote_url": "u"}, ("remote_url", "u"), "remoteUrl"),
    ],
)
def test_what_a_union_has_chosen(members, choice, yaml):
    assert (Source(**members).chosen, Source(**members).yaml_choice) == (choice, yaml)


def test_attributes_by_their_yaml_names():
    assert python_name(Limits, "lowMark") == "low_mark"
    with pytest.raises(KeyError, match="low_mark"):
        python_name(Limits, "low_mark")


@pytest.mark.parametrize(
    ("job", "path", "value"),
    [
        (Job(limits=Limits(low_mark=3)), "limits.lowMark", 3),
        (Job(), "limits", None),
        (Job(), "limits.lowMark", None),
        (Job(), "source.localFile", "f"),
    ],
)
def test_a_value_below_a_model(job, path, value):
    assert value_at(job, path) == value


def test_the_empty_path_is_the_model_itself():
    job = Job()
    assert value_at(job, "") is job


def test_a_rule_shows_plain_values_alone():
    about = Rule("tags must not repeat", "", lambda limits: True, ("tags", "lowMark"))
    assert describe(about, Limits(low_mark=4)) == "tags must not repeat (lowMark is 4)"
    assert describe(Rule("tags must not repeat", "", lambda limits: True, ("tags",)), Limits()) == (
        "tags must not repeat"
    )


def test_another_rule_of_a_union_shows_its_values():
    about = Rule("localFile must be absolute", "", lambda source: True, ("localFile",))
    assert describe(about, Source(local_file="f")) == "localFile must be absolute (localFile is f)"


def test_a_document_has_yaml_names_alone_and_an_object_never_changes():
    assert Limits.model_validate({"lowMark": 2}).low_mark == 2
    with pytest.raises(ValidationError):
        Limits.model_validate({"low_mark": 2})
    assert Limits.model_validate({"low_mark": 2}, by_name=True, by_alias=False).low_mark == 2
    with pytest.raises(ValidationError):
        Limits().low_mark = 2
