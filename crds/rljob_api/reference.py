"""The field reference in Markdown, derived from the models.

Guarantees: every field with its type, default, bounds and description; every rule that spans fields.
`python -m rljob_api.reference` prints it.
"""

import json
from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from rljob_api.base import Model, OneOf
from rljob_api.crd import default_of
from rljob_api.descriptions import description
from rljob_api.errors import python_names, unwrap, yaml_fields
from rljob_api.job import GROUP, KIND, VERSION, Spec
from rljob_api.status import Status

_HEAD = f"""# {KIND} reference

`apiVersion: {GROUP}/{VERSION}`, `kind: {KIND}`. Generated from `crds/rljob_api` by `make crds`.

A field without a default must be set. *one of* marks members of which exactly one is set. Relative paths are
relative to the manifest's folder on one machine, and to `storage.mountPath` in a cluster. Numbers may be
written as `1e-6`. The API server fills in all defaults but that of a choice between members, such as
`engine`: there it stores what was written, so that another member can be applied later.
"""


def reference() -> str:
    """The whole page."""
    parts = [_HEAD, *_sections("spec", Spec), *_sections("status", Status)]
    return "\n".join(parts)


def _sections(path: str, model: type[Model]) -> Iterator[str]:
    """A section for the model at a path, then one for each model below it."""
    fields = yaml_fields(model)
    names = python_names(model)
    members = {yaml for yaml, name in names.items() if name in _members(model)}
    about = " ".join((model.__doc__ or "").split())
    heading = f"## {path}\n\n{about}"
    # Members of a union may have no fields of their own, and an empty table says nothing.
    yield heading + ("\n\n| field | type | default | allowed | |\n|---|---|---|---|---|" if fields else "")
    for name, field in fields.items():
        mark = " *one of*" if name in members else ""
        cells = [
            f"`{name}`{mark}",
            _type_name(field),
            _default(field),
            _allowed(field),
            _text(description(model, names[name])),
        ]
        yield f"| {' | '.join(cells)} |"
    rules = [f"- {rule.message}." for rule in model.all_rules()]
    yield "\n".join(["", *rules, ""]) if rules else ""
    for name, field in fields.items():
        below, each = unwrap(field.annotation), ""
        if get_origin(below) is list:
            below, each = get_args(below)[0], "[]"
        if isinstance(below, type) and issubclass(below, Model):
            yield from _sections(f"{path}.{name}{each}", below)


def _members(model: type[Model]) -> tuple[str, ...]:
    return model.one_of if issubclass(model, OneOf) else ()


def _type_name(field: FieldInfo) -> str:
    annotation = unwrap(field.annotation)
    if get_origin(annotation) is Literal:
        return "string"
    if get_origin(annotation) is dict:
        return "mapping"
    if get_origin(annotation) is list:
        return "list of strings" if get_args(annotation)[0] is str else "list"
    names = {int: "integer", float: "number", str: "string", bool: "boolean"}
    return names.get(annotation, "object")


def _default(field: FieldInfo) -> str:
    union = field.default
    if isinstance(union, OneOf):
        return f"`{union.yaml_choice}`"
    value = default_of(field)
    if value is None:
        return "" if field.is_required() else "not set"
    if isinstance(value, dict):
        return "see below" if value else "empty"
    return f"`{json.dumps(value)}`"


def _allowed(field: FieldInfo) -> str:
    annotation: Any = unwrap(field.annotation)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    words = []
    for bound in field.metadata:
        match bound:
            case Ge(ge=value):
                words.append(f"≥ {value}")
            case Gt(gt=value):
                words.append(f"> {value}")
            case Le(le=value):
                words.append(f"≤ {value}")
            case Lt(lt=value):
                words.append(f"< {value}")
    if NoneType in get_args(field.annotation) and default_of(field) is not None:
        words.append("or `null`")
    return ", ".join(words)


def _text(description: str | None) -> str:
    return " ".join((description or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
