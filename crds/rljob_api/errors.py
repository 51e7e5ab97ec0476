"""What is wrong with an RLJob, in words for the person who wrote it.

Guarantees: every problem names its field by its YAML path, what was found and what is allowed; an unknown
name comes with the nearest known one, with where it would be known, or with the list of what is known.
"""

import difflib
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rljob_api.descriptions import description

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    path: Path
    """Where, in YAML names."""
    message: str
    """What is wrong and what is allowed: one line without a full stop at the end."""
    suggestion: str | None = None
    """The name or value that was probably meant."""

    def __str__(self) -> str:
        hint = f" Did you mean {self.suggestion}?" if self.suggestion else ""
        where = f"{_one_line(dotted(self.path))}: " if self.path else ""
        return f"{where}{self.message}.{hint}"


def dotted(path: Path) -> str:
    """`("spec", "pools", 0)` as `spec.pools[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _one_line(text: str) -> str:
    """The text with line ends and control characters as Python would write them: a key may have any."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def problems(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """The problems behind a pydantic error about `model`, in the order of their paths."""
    found = [problem for details in error.errors() for problem in _explain(details, model)]
    return sorted(found, key=lambda problem: [str(part) for part in problem.path])


def nearest(word: str, known: list[str]) -> str | None:
    """The known word that `word` is probably a misspelling of."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[close[0]] if close else None


def _explain(details: ErrorDetails, model: type[BaseModel]) -> Iterator[Problem]:
    path: Path = details["loc"]
    kind = details["type"]
    if kind == "rules":
        for field, message in details["ctx"]["broken"]:
            yield Problem((*path, *filter(None, field.split("."))), message)
    elif kind == "quantities":
        for name, value in details["ctx"]["broken"]:
            form = "4, 500m, '0.5' (quoted) or 16Gi, of at most 32 characters"
            yield Problem((*path, name), f"must be a quantity such as {form} (found {_show(value)})")
    elif kind == "extra_forbidden":
        owner = _type_at(model, path[:-1])
        known = list(yaml_fields(owner)) if owner else []
        suggestion = nearest(str(path[-1]), known)
        listed = "" if suggestion or not known else f" (known here: {', '.join(sorted(known))})"
        if (meant := _of_an_engine(path)) is not None:
            yield Problem(path, f"unknown field: {meant}")
            return
        yield Problem(path, f"unknown field{_elsewhere(model, str(path[-1])) or listed}", suggestion)
    elif kind == "missing":
        yield Problem(path, _missing(model, path))
    elif kind == "literal_error":
        allowed = _literals(model, path)
        # Where one value is allowed the message names it already.
        suggestion = (
            nearest(str(details["input"]), [str(value) for value in allowed]) if allowed[1:] else None
        )
        listed = ", ".join(map(str, allowed)) or details["ctx"]["expected"]
        yield Problem(
            path, f"{_show(details['input'])} is not allowed; it must be {_either(listed)}", suggestion
        )
    elif kind == "string_pattern_mismatch":
        words = _form(model, path) or f"of the form {details['ctx']['pattern']}"
        yield Problem(path, f"must be {words} (found {_show(details['input'])})")
    elif kind == "string_type" and (wanted := _unquotable(model, path, details["input"])) is not None:
        yield Problem(path, f"must be a string, {wanted} (found {_show(details['input'])})")
    elif kind == "model_type" and path and (owner := _type_at(model, path)) is not None:
        yield Problem(path, _no_mapping(owner, details["input"]))
    else:
        yield Problem(path, _sentence(kind, details))


_FEW_PLACES = 4
"""As many are named where a field may have been meant for any of them, such as one of all pools."""
_OPERATORS = "status"
"""The field of an RLJob that no manifest has."""


def _of_an_engine(path: Path) -> str | None:
    """What somebody who splits an engine's layers is to set. The field of that name is the trainer's."""
    name = str(path[-1]).replace("_", "").lower()
    if not name.startswith("tensorparallel") or not {"rollout", "fastRollout", "heavyRollout"} & set(path):
        return None
    return (
        "an engine splits the model's layers over all accelerators of its worker, "
        "spec.pools.fastRollout.acceleratorsPerWorker and spec.pools.heavyRollout.acceleratorsPerWorker"
    )


def _elsewhere(model: type[BaseModel], name: str) -> str:
    """Where else a document has a field of this name; "" where it has none, or too many to choose from."""
    places = _places(model).get(name, [])
    if not 0 < len(places) <= _FEW_PLACES:
        return ""
    return f" here: it is {' or '.join(filter(None, (', '.join(places[:-1]), places[-1])))}"


@cache
def _places(model: type[BaseModel]) -> dict[str, list[str]]:
    """The places of all fields of a document, by their names; `[]` stands for each item of a list."""
    found: dict[str, list[str]] = {}

    def collect(block: type[BaseModel], above: str) -> None:
        for name, field in yaml_fields(block).items():
            if not above and name == _OPERATORS:
                continue
            found.setdefault(name, []).append(f"{above}{name}")
            annotation = unwrap(field.annotation)
            inner, ending = (annotation, ".") if (item := _item(annotation)) is None else (item, "[].")
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                collect(inner, f"{above}{name}{ending}")

    collect(model, "")
    return found


_FEW_FIELDS = 8
"""As many are listed in a line; more are for the reference."""


def _no_mapping(owner: type[BaseModel], found: Any) -> str:
    """That a value is no mapping of the fields of `owner`, which those are, and how a choice that is named by
    a word alone, such as `policyLoss: gspo`, is written."""
    choices = [to_camel(name) for name in getattr(owner, "one_of", ())]
    known = choices or list(yaml_fields(owner))
    if len(known) > _FEW_FIELDS:
        return f"must be a mapping (found {_show(found)})"
    if not known:
        return f"must be {{}}, for it has no fields (found {_show(found)})"
    fields = f"one of {', '.join(known)}" if choices else ", ".join(known)
    meant = nearest(found, choices) if isinstance(found, str) else None
    written = f": write {{{meant}: {{}}}}" if meant else ""
    return f"must be a mapping with {fields} (found {_show(found)}){written}"


_EXACT = 2.0**53
"""Above it floats are no longer the whole numbers that were written."""
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")
_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "below the smallest allowed value"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "above the largest allowed value"),
    "less_than": ("lt", "below"),
}


def _sentence(kind: str, details: ErrorDetails) -> str:
    value = _show(details["input"])
    context = details.get("ctx", {})
    if kind in _KINDS:
        return f"must be {_KINDS[kind]} (found {value}){_rewritten(kind, details['input'])}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        # "must be above 0 (found 0)": the value is the bound, and "0 is above 0" would be false.
        if key in ("gt", "lt"):
            return f"must be {words} {context[key]:g} (found {value})"
        return f"{value} is {words} {context[key]}"
    if kind == "finite_number":
        return f"must be a finite number (found {value})"
    if kind == "string_too_short":
        return (
            "must not be empty" if context["min_length"] == 1 else f"is shorter than {context['min_length']}"
        )
    if kind == "string_too_long":
        return f"has more than {context['max_length']} characters"
    if kind == "too_short":
        least = context["min_length"]
        return "must not be empty" if least == 1 else f"needs {least} (found {context['actual_length']})"
    if kind == "too_long":
        return f"may have {context['max_length']} at most (found {context['actual_length']})"
    message = details["msg"]
    return f"{message[0].lower()}{message[1:]} (found {value})"


def _rewritten(kind: str, value: Any) -> str:
    """What to do where only the way in which it is written makes a value what it should not be."""
    if kind == "int_type" and isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return f": write it as {int(value)}"
    if kind == "string_type" and isinstance(value, (int, float)):
        return ": quote it"
    if kind in ("int_type", "float_type") and isinstance(value, str) and _NUMBER.fullmatch(value):
        return ": write it without quotes"
    return ""


def _unquotable(model: type[BaseModel], path: Path, value: Any) -> str | None:
    """The form of a field of text, in words, where a number or a truth value has it not even in quotes."""
    field = _field_at(model, path)
    patterns = [getattr(bound, "pattern", None) for bound in field.metadata] if field else []
    fits = all(re.search(pattern, _show(value)) for pattern in patterns if pattern)
    if fits or not isinstance(value, (int, float)):
        return None
    return _form(model, path)


def _missing(model: type[BaseModel], path: Path) -> str:
    """That a field must be set, and to what."""
    allowed = _literals(model, path)
    if allowed[1:]:
        return f"must be set to one of {', '.join(map(str, allowed))}"
    about = _describe_field(model, path)
    choices = getattr(_type_at(model, path), "one_of", ())
    one = f" by one of {', '.join(map(to_camel, choices))}" if choices else ""
    return f"must be set{one}{f' ({about})' if about else ''}"


def blank(model: type[BaseModel], path: Path) -> str | None:
    """What is to be said of the field of a document at `path` behind whose name nothing is written; None
    where that can mean nothing but that it is left out. Of a block it may mean that it is to have its
    defaults, too."""
    block = _type_at(model, path)
    if block is None:
        return None
    choices = [to_camel(name) for name in getattr(block, "one_of", ())]
    needed = [name for name, field in yaml_fields(block).items() if field.is_required()]
    written = (
        f"one of {', '.join(choices)}"
        if choices
        else f"its {' and '.join(needed)}"
        if needed
        else "{} for its defaults"
    )
    return f"nothing is written behind it: write {written}, or take it out"


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    # As YAML writes it: true, and not True.
    text = (
        repr(value)
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
    return text if len(text) <= 60 else f"{text[:57]}..."


def _either(listed: str) -> str:
    return f"one of {listed}" if ", " in listed else listed


def yaml_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by their YAML names."""
    return {field.alias or to_camel(name): field for name, field in model.model_fields.items()}


def python_names(model: type[BaseModel]) -> dict[str, str]:
    """The names of a model's fields in Python, by their YAML names."""
    return dict(zip(yaml_fields(model), model.model_fields, strict=True))


def unwrap(annotation: Any) -> Any:
    """`X` for `X | None`; anything else unchanged."""
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return members[0] if len(members) == 1 else annotation
    return annotation


def _item(annotation: Any) -> Any:
    """The type of a list's items; None where it is no list."""
    return unwrap(get_args(annotation)[0]) if get_origin(annotation) is list else None


def _annotation_at(model: type[BaseModel], path: Path) -> Any:
    """The type at a path below a model; None where the path leaves the models."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            current = _item(current)
            continue
        if not (isinstance(current, type) and issubclass(current, BaseModel)):
            return None
        field = yaml_fields(current).get(str(part))
        if field is None:
            return None
        current = unwrap(field.annotation)
    return current


def _type_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    found = _annotation_at(model, path)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _literals(model: type[BaseModel], path: Path) -> tuple[Any, ...]:
    found = _annotation_at(model, path)
    return get_args(found) if get_origin(found) is Literal else ()


def _field_at(model: type[BaseModel], path: Path) -> FieldInfo | None:
    owner = _type_at(model, path[:-1])
    return yaml_fields(owner).get(str(path[-1])) if owner else None


def _describe_field(model: type[BaseModel], path: Path) -> str:
    owner, last = _type_at(model, path[:-1]), str(path[-1])
    name = python_names(owner).get(last) if owner else None
    text = description(owner, name) if owner and name else ""
    return text.split(". ")[0].rstrip(".").replace("\n", " ")


def _form(model: type[BaseModel], path: Path) -> str | None:
    """The field's pattern in words (`base.form`)."""
    field = _field_at(model, path)
    extra = field.json_schema_extra if field else None
    return str(extra["form"]) if isinstance(extra, dict) and "form" in extra else None
