"""Commented YAML.

Guarantees: what is written is read back by `manifest.source.parse` as the very same values, in the order in
which the API has its fields; no line is longer than `WIDTH`, unless a single value is.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from rljob_api import RLJob
from rljob_api.base import Model
from rljob_api.errors import unwrap, yaml_fields
from rljob_runtime.authoring.fields import Field, document
from rljob_runtime.manifest.source import YamlError, parse

WIDTH = 110
"""Characters."""
_STEP = "  "


def manifest(fields: Mapping[str, Field], head: Sequence[str]) -> str:
    """The text of a manifest; `head`: paragraphs of a comment at its beginning."""
    lines = [line for paragraph in head for line in _comment(paragraph, "")]
    return "\n".join([*lines, *_mapping(document(fields), (), RLJob, fields), ""])


def _mapping(
    value: Mapping[str, Any], path: tuple[str, ...], model: Any, fields: Mapping[str, Field]
) -> Iterator[str]:
    known = yaml_fields(model) if isinstance(model, type) and issubclass(model, Model) else {}
    order = list(known)
    indent = _STEP * len(path)
    for name in sorted(value, key=lambda each: order.index(each) if each in known else len(order)):
        field = fields.get(".".join((*path, name)))
        if field is not None or not isinstance(value[name], dict):
            comment = field.comment if field is not None else ""
            yield from _line(f"{indent}{_text(name)}: {_flow(value[name])}", comment, indent)
        else:
            yield f"{indent}{_text(name)}:"
            below = unwrap(known[name].annotation) if name in known else None
            yield from _mapping(value[name], (*path, name), below, fields)


def _line(text: str, comment: str, indent: str) -> Iterator[str]:
    words = " ".join(comment.split())
    if not words:
        yield text
    elif len(text) + len(words) + 4 <= WIDTH:
        yield f"{text}  # {words}"
    else:
        yield from _comment(words, indent)
        yield text


def _comment(text: str, indent: str) -> list[str]:
    mark = f"{indent}# "
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=mark,
        subsequent_indent=mark,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [mark.rstrip()]


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(str(name))}: {_flow(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value) if isinstance(value, str) else repr(value)


@cache
def _text(text: str) -> str:
    """A string, in quotes where it would be read as something else without them."""
    # Single letters: y and n are truth values to some readers of YAML.
    if len(text) > 1:
        try:
            # In a list, where commas and brackets mean something.
            if parse(f"k: [{text}]").value == {"k": [text]}:
                return text
        except YamlError:
            pass  # what cannot be read as it is stands in quotes
    quoted: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=2**31)
    return quoted.rstrip("\n")
