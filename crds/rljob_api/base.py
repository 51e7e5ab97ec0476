"""Base classes of every RLJob model.

Guarantees: Python names are snake_case and YAML names camelCase through one alias generator; a document has
YAML names alone; unknown fields are errors; values are never converted from another type; a parsed object
never changes. A rule that spans fields is written once, as a `Rule`: the same text refuses a manifest here
and in the API server.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, JsonValue, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


@dataclass(frozen=True)
class Rule:
    """One condition on a model that takes more than one field to state."""

    message: str
    """What is demanded, for people: one line, the same in Python and in the API server."""
    cel: str
    """The condition as a CEL expression over `self`, in YAML names, with all defaults filled in but those of
    unions: a union that is not set has its default."""
    holds: Callable[[Any], bool]
    """The condition on a parsed model."""
    fields: tuple[str, ...]
    """Dotted YAML names of the fields it is about; the first is the one that an error points at."""
    named: Callable[[Any], list[str]] | None = None
    """Words for those parts of a parsed model that break the condition, where it is about each of a list. Not
    in the API server's message, whose length must be bounded."""


@dataclass(frozen=True)
class Transition:
    """One condition on a change of an object; only the API server sees both sides of a change."""

    message: str
    """What is demanded, for people: one line."""
    cel: str
    """The condition as a CEL expression over `self` and `oldSelf`, in YAML names, defaults filled in."""
    field: str
    """Dotted YAML name of the field that an error points at."""


FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""Pattern of "module:function", which names a function of the job's own."""
FUNCTION_LENGTH = 253
"""Most characters of such a name."""


def form(words: str) -> dict[str, JsonValue]:
    """For a field with a pattern, as its `json_schema_extra`: the pattern in words, after "must be"."""
    return {"form": words}


class Model(BaseModel):
    """An immutable object of the RLJob API."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        # For construction in Python; `model_validate` turns it off for documents.
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        # As the API server: "2" in quotes is no number.
        strict=True,
        # A default that breaks a rule is found by every test, not by the first user.
        validate_default=True,
        # JSON has neither.
        allow_inf_nan=False,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    transitions: ClassVar[tuple[Transition, ...]] = ()

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """The object that a document describes. Python names are for construction: they are no fields of a
        document, here as in the API server."""
        return super().model_validate(obj, **{"by_alias": True, "by_name": False, **options})

    @classmethod
    @cache
    def all_rules(cls) -> tuple[Rule, ...]:
        """The rules of this class and of its bases."""
        return tuple(
            rule
            for base in reversed(cls.__mro__)
            if issubclass(base, Model)
            for rule in vars(base).get("rules", ())
        )

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = [rule for rule in self.all_rules() if not rule.holds(self)]
        if broken:
            raise PydanticCustomError(
                "rules",
                "{text}",
                {
                    "text": "; ".join(describe(rule, self) for rule in broken),
                    "broken": [(rule.fields[0], describe(rule, self)) for rule in broken],
                },
            )
        return self


class OneOf(Model):
    """A tagged union in the form the Kubernetes API uses: several optional members, exactly one set.

    `one_of` names the members (Python names); other fields of the class may stand beside them.
    """

    one_of: ClassVar[tuple[str, ...]]

    @classmethod
    @cache
    def all_rules(cls) -> tuple[Rule, ...]:
        """The rules of this class and of its bases, first that exactly one member is set."""
        names = [to_camel(name) for name in cls.one_of]
        exactly_one = Rule(
            message=f"set exactly one of {', '.join(names)}",
            cel=f"[{', '.join(f'has(self.{name})' for name in names)}].filter(x, x).size() == 1",
            holds=lambda self: sum(getattr(self, name) is not None for name in cls.one_of) == 1,
            # About the object itself: an error points at it, and not at a member.
            fields=("",),
        )
        return (exactly_one, *super().all_rules())

    @property
    def chosen(self) -> tuple[str, Any]:
        """The member that is set: its Python name and its value."""
        name = next(name for name in self.one_of if getattr(self, name) is not None)
        return name, getattr(self, name)

    @property
    def yaml_choice(self) -> str:
        """The member that is set: its YAML name."""
        return to_camel(self.chosen[0])


def python_name(model: type[Model], yaml_name: str) -> str:
    """The attribute that a YAML name stands for; KeyError where there is none."""
    for name, field in model.model_fields.items():
        if field.alias == yaml_name:
            return name
    raise KeyError(yaml_name)


def value_at(model: Model, path: str) -> Any:
    """The value at a dotted YAML path below a model; None where a part of it is not set."""
    value: Any = model
    for part in filter(None, path.split(".")):
        if value is None:
            return None
        value = getattr(value, python_name(type(value), part))
    return value


def _written(value: int | float | str) -> str:
    """A value as YAML writes it: true, and not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe(rule: Rule, model: Model) -> str:
    """The rule's message with the values that broke it."""
    if isinstance(model, OneOf) and rule.fields == ("",):
        said = [to_camel(name) for name in model.one_of if getattr(model, name) is not None]
        return f"{rule.message} (found {' and '.join(said) or 'none'})"
    values = [(path, value_at(model, path)) for path in rule.fields]
    shown = [f"{path} is {_written(value)}" for path, value in values if isinstance(value, int | float | str)]
    shown += rule.named(model) if rule.named is not None else []
    return f"{rule.message} ({', '.join(shown)})" if shown else rule.message
