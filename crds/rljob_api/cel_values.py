"""The message of a broken rule with the values that broke it, as a CEL expression for the API server.

Guarantees: the same words as `base.describe` in Python, but without texts, whose length the API server could
not bound; no value is read that may be absent.
"""

import json
from dataclasses import dataclass
from typing import Literal, get_origin

from pydantic.fields import FieldInfo

from rljob_api.base import Model, OneOf, Rule, python_name
from rljob_api.errors import unwrap


@dataclass(frozen=True, slots=True)
class _Part:
    """A value of a message."""

    name: str
    """Its dotted path."""
    when: str | None
    """The condition that it is there; None: always."""
    value: str
    """Its text, as an expression."""


def message_in_cel(rule: Rule, model: type[Model]) -> str | None:
    """An expression over `self`, such as `"a must be even (a is %s)".format([string(self.a)])`; None where
    the rule is about no value that can be shown."""
    if issubclass(model, OneOf) and rule.fields == ("",):
        return _chosen(rule, model)
    parts = [part for path in rule.fields if (part := _part(model, path)) is not None]
    if not parts:
        return None
    message = rule.message.replace("%", "%%")
    listed, values = _listed(parts)
    found = _format(f"{message} ({listed})", values)
    some = [part.when for part in parts if part.when is not None]
    return found if len(some) < len(parts) else f"{' || '.join(some)} ? {found} : {quoted(rule.message)}"


def _chosen(rule: Rule, model: type[OneOf]) -> str:
    """Which members of a union are set."""
    names = [field.alias or name for name, field in model.model_fields.items() if name in model.one_of]
    some = " || ".join(f"has(self.{name})" for name in names)
    texts = " + ".join(f'(has(self.{name}) ? " and {name}" : "")' for name in names)
    return _format(f"{rule.message} (found %s)", [f'{some} ? ({texts}).substring(5) : "none"'])


def _listed(parts: list[_Part]) -> tuple[str, list[str]]:
    """A format of all parts, and its values: those that may be absent are formatted for themselves."""
    words, values = "", []
    for number, part in enumerate(parts):
        earlier = [before.when for before in parts[:number]]
        comma = ", " if None in earlier else ""
        if part.when is None and (comma or not earlier):
            words += f"{comma}{part.name} is %s"
            values.append(part.value)
            continue
        if earlier and not comma:
            words += "%s"
            both = " || ".join(filter(None, earlier))
            values.append(f'({both}) && {part.when or "true"} ? ", " : ""')
        words += "%s"
        text = _format(f"{comma}{part.name} is %s", [part.value])
        values.append(text if part.when is None else f'{part.when} ? {text} : ""')
    return words, values


def _format(words: str, values: list[str]) -> str:
    # Not by `+` and `join`: the API server takes the cost of those by the length of what they join, of which
    # it knows no bound, and that of `format` by the length of the format.
    return f"{quoted(words)}.format([{', '.join(values)}])"


def _part(model: type[Model], path: str) -> _Part | None:
    """The value at a dotted path; None where it is no number and none of a few words."""
    at, conditions, found = "self", [], None
    for name in filter(None, path.split(".")):
        found = model.model_fields[python_name(model, name)]
        at = f"{at}.{name}"
        if not _always(found):
            conditions.append(f"has({at})")
        below = unwrap(found.annotation)
        if isinstance(below, type) and issubclass(below, Model):
            model = below
    if found is None:
        return None
    kind = unwrap(found.annotation)
    if kind not in (bool, int, float) and get_origin(kind) is not Literal:
        return None
    return _Part(path, " && ".join(conditions) or None, f"string({at})")


def _always(field: FieldInfo) -> bool:
    """Whether the API server has a value for the field wherever it has its object: a union's default is not
    stored."""
    if field.is_required():
        return True
    default = field.get_default(call_default_factory=True, validated_data={})
    return default is not None and not isinstance(default, OneOf)


def quoted(text: str) -> str:
    """A text as a CEL literal."""
    return json.dumps(text, ensure_ascii=False)
