"""RLJobs as an API server returns them, whose definition of RLJobs may be newer or older than this release.

A person's manifest is held to the models: an unknown field there is a mistake. An API server has checked what
it stores by its own definition, and has filled in the defaults of that one: an unknown field there is of
another release.

Guarantees: what this release knows is validated as in a manifest. A field that it does not know is left out,
at whatever depth, and named. Where the choice of a union or a value is unknown nothing can be left out, since
nothing says what to do instead: that is refused, by name. What a definition of this very release has accepted
is read as it is, unless a part that is passed on is nested deeper than anything that Kubernetes has a use
for, which a definition cannot say.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from rljob_api.base import Model, OneOf
from rljob_api.errors import Path, Problem, dotted, problems, unwrap, yaml_fields

M = TypeVar("M", bound=Model)

_NAMED = 5
"""Most fields that one message names."""
DEEPEST = 60
"""Levels of objects and lists in a field that is passed on as it is. A pod template has fewer than twenty; of
what is nested a few hundred levels deep nothing can be made."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[M]):
    """An object that was read."""

    value: M
    """What this release knows of it."""
    left_out: tuple[str, ...] = ()
    """Dotted YAML paths of the fields that it does not know, below the object; the outermost of each."""


class StoredError(ValueError):
    """The object cannot be read."""

    def __init__(self, found: list[Problem]) -> None:
        self.problems = found
        super().__init__("; ".join(map(str, found)))


class TooDeep(StoredError):
    """A field is nested deeper than `DEEPEST`, in an object of whatever release."""


def read_stored(model: type[M], document: Mapping[str, Any]) -> Stored[M]:
    """What an API server returned, without what this release does not know. Raises `StoredError`."""
    if deep := list(_deep(document, model)):
        raise TooDeep(deep)
    try:
        return Stored(model.model_validate(document))
    except ValidationError:
        # Told below, where it is not an unknown field alone.
        pass
    left_out: list[Path] = []
    unknown = list(_unknown_choices(document, model))
    if unknown:
        raise StoredError(unknown)
    known = _known(document, model, (), left_out)
    try:
        value = model.model_validate(known)
    except ValidationError as error:
        raise StoredError(problems(error, model)) from None
    # In one order: a message that says the same is the same.
    return Stored(value, tuple(sorted(map(dotted, left_out))))


def known_part(model: type[Model], document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without fields that the model does not know, at whatever depth; not validated."""
    known: dict[str, Any] = _known(document, model, (), [])
    return known


def name_fields(paths: tuple[str, ...] | list[str]) -> str:
    """The paths for people, at most a few of them."""
    more = len(paths) - _NAMED
    return ", ".join(paths[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _known(value: Any, annotation: Any, path: Path, left_out: list[Path]) -> Any:
    """The value without fields that its type lacks, whose paths are added to `left_out`."""
    if isinstance(value, list) and get_origin(annotation) is list:
        [item] = get_args(annotation)
        return [_known(each, item, (*path, index), left_out) for index, each in enumerate(value)]
    model = _model(annotation)
    if model is None or not isinstance(value, Mapping):
        return value
    fields, kept = yaml_fields(model), {}
    for name, below in value.items():
        if name in fields:
            kept[name] = _known(below, unwrap(fields[name].annotation), (*path, name), left_out)
        elif model.model_config.get("extra") != "ignore":
            left_out.append((*path, str(name)))
    return kept


def _unknown_choices(value: Any, annotation: Any, path: Path = ()) -> Iterator[Problem]:
    """Unions of which no known member is set, but something that is not known."""
    if isinstance(value, list) and get_origin(annotation) is list:
        for index, each in enumerate(value):
            yield from _unknown_choices(each, get_args(annotation)[0], (*path, index))
    model = _model(annotation)
    if model is None or not isinstance(value, Mapping):
        return
    fields = yaml_fields(model)
    if issubclass(model, OneOf):
        members = [to_camel(name) for name in model.one_of]
        # Beside a member that is known, what is not known can only be another field: one member is set.
        if all(value.get(name) is None for name in members):
            for name in (name for name in value if name not in fields and value[name] is not None):
                yield Problem((*path, str(name)), f"unknown here (known: {', '.join(members)})")
    for name, below in value.items():
        if name in fields:
            yield from _unknown_choices(below, unwrap(fields[name].annotation), (*path, name))


def _deep(value: Any, annotation: Any, path: Path = ()) -> Iterator[Problem]:
    """Fields that are passed on as they are, and nested too deep for that."""
    model = _model(annotation)
    if isinstance(value, list) and get_origin(annotation) is list:
        for index, each in enumerate(value):
            yield from _deep(each, get_args(annotation)[0], (*path, index))
    elif model is not None and isinstance(value, Mapping):
        fields = yaml_fields(model)
        for name, below in value.items():
            if name in fields:
                yield from _deep(below, unwrap(fields[name].annotation), (*path, name))
    elif _deeper(value, DEEPEST):
        yield Problem(
            path,
            f"must not be nested deeper than {DEEPEST} levels: write what Kubernetes knows of this field, "
            "which has fewer than 20",
        )


def _deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists stand in each other more than `levels` times."""
    # Not by recursion, which is what such a value would break.
    open_ = [(value, 1)]
    while open_:
        outer, level = open_.pop()
        inner = outer.values() if isinstance(outer, Mapping) else outer if isinstance(outer, list) else None
        if inner is None:
            continue
        if level > levels:
            return True
        open_ += [(each, level + 1) for each in inner]
    return False


def _model(annotation: Any) -> type[Model] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, Model) else None
