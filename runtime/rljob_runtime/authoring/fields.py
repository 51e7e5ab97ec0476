"""Fields of an RLJob while it is being written: a value and a comment at each dotted path.

Guarantees: nothing is read or written; what is allowed is what the models of the API allow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError

from rljob_api import GROUP, KIND, VERSION, RLJob
from rljob_api.base import Model
from rljob_api.descriptions import description
from rljob_api.errors import Problem, problems, python_names, unwrap, yaml_fields


@dataclass(frozen=True)
class Field:
    """A value and what to say of it."""

    value: Any
    """Scalar, list or mapping, as a YAML document has it."""
    comment: str = ""


Fields: TypeAlias = dict[str, Field]
"""By dotted path from the document's root, such as `spec.training.seed`."""


def document(fields: Mapping[str, Field]) -> dict[str, Any]:
    """The manifest as plain values."""
    result: dict[str, Any] = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND}
    for path, field in fields.items():
        *above, name = path.split(".")
        target = result
        for part in above:
            target = target.setdefault(part, {})
        target[name] = field.value
    return result


def refusal(path: str, value: Any) -> str | None:
    """Why a field cannot have a value, whatever the others are, as a clause; None where it can."""
    place = tuple(path.split("."))
    try:
        RLJob.model_validate(document({path: Field(value)}))
    except ValidationError as error:
        # Other fields are missing here, and rules that speak of them say nothing of this one.
        own = {entry["loc"] for entry in error.errors() if entry["type"] != "rules"}
        for problem in problems(error, RLJob):
            if problem.path in own and problem.path[: len(place)] == place:
                return problem.message
    return None


def broken(fields: Mapping[str, Field]) -> list[Problem]:
    """What is wrong with the manifest that the fields make."""
    try:
        RLJob.model_validate(document(fields))
    except ValidationError as error:
        return problems(error, RLJob)
    return []


def about(path: str) -> str:
    """What the reference says of a field, in its first sentence; empty where it says nothing."""
    model: Any = RLJob
    said = ""
    for name in path.split("."):
        known = yaml_fields(model) if isinstance(model, type) and issubclass(model, Model) else {}
        if name not in known:
            return ""
        said, model = description(model, python_names(model)[name]), unwrap(known[name].annotation)
    first = " ".join(said.split()).partition(". ")[0].rstrip(".")
    # A name such as AdamW keeps its capitals.
    return f"{first[:1].lower()}{first[1:]}" if first.partition(" ")[0][1:].islower() else first
