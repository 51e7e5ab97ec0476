"""What a definition of RLJobs changes of an earlier one that objects stored under that would feel.

docs/compatibility.md, "How the API changes within a version", says what may change and what may not.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_LOWEST = ("minimum", "minLength", "minItems", "minProperties")
_HIGHEST = ("maximum", "maxLength", "maxItems", "maxProperties")
_SAME = ("type", "default", "pattern", "format", "exclusiveMinimum", "exclusiveMaximum", "nullable")


def breaking_changes(before: Schema, now: Schema, path: str = "") -> Iterator[str]:
    """One line for each, with the field's dotted path."""
    old, new = before.get("properties", {}), now.get("properties", {})
    yield from (f"{_at(path, name)} is gone" for name in sorted(old.keys() - new.keys()))
    for name in sorted({*now.get("required", ())} - {*before.get("required", ())}):
        yield f"{_at(path, name)} is required"
    yield from _own(before, now, path)
    yield from _rules(before, now, path)
    for name in old.keys() & new.keys():
        yield from breaking_changes(old[name], new[name], _at(path, name))
    if "items" in before and "items" in now:
        yield from breaking_changes(before["items"], now["items"], f"{path}[]")
    # Of a mapping: false, true, or the schema of each value.
    values = [each.get("additionalProperties") for each in (before, now)]
    if all(isinstance(each, dict) for each in values):
        yield from breaking_changes(*values, f"{path}.*")


def _own(before: Schema, now: Schema, path: str) -> Iterator[str]:
    """Of the field's own value."""
    for key in _SAME:
        # The default of an object names those of the fields in it, of which there may be more.
        if key == "default" and isinstance(before.get(key), dict):
            if not _holds(before[key], now.get(key)):
                yield f"{path}: default was {json.dumps(before[key])}, is {json.dumps(now.get(key))}"
        # A pattern may be said as a rule, in words.
        elif before.get(key) != now.get(key) and not (key == "pattern" and key not in now):
            yield f"{path}: {key} was {before.get(key)!r}, is {now.get(key)!r}"
    for key in _LOWEST:
        if now.get(key, float("-inf")) > before.get(key, float("-inf")):
            yield f"{path}: {key} was {before.get(key)}, is {now[key]}"
    for key in _HIGHEST:
        if now.get(key, float("inf")) < before.get(key, float("inf")):
            yield f"{path}: {key} was {before.get(key)}, is {now[key]}"
    if gone := {*before.get("enum", ())} - {*now.get("enum", before.get("enum", ()))}:
        yield f"{path}: {', '.join(sorted(gone))} is no value any more"
    if "enum" in now and "enum" not in before:
        yield f"{path}: only {', '.join(now['enum'])}"


def _rules(before: Schema, now: Schema, path: str) -> Iterator[str]:
    known = {rule["rule"] for rule in before.get("x-kubernetes-validations", ())}
    # A pattern said as a rule.
    known.add(f"self.matches({json.dumps(before.get('pattern'), ensure_ascii=False)})")
    # No stored object has a field that the release adds.
    added = [re.compile(rf"\bself\.{re.escape(each)}\b") for each in _fields(now) - _fields(before)]
    for rule in now.get("x-kubernetes-validations", ()):
        if rule["rule"] not in known and not any(each.search(rule["rule"]) for each in added):
            yield f"{path}: rule {rule['rule']}"


def _fields(schema: Schema, path: str = "") -> set[str]:
    """Dotted paths of all fields below."""
    found = set()
    for name, below in schema.get("properties", {}).items():
        found |= {_at(path, name)} | _fields(below, _at(path, name))
    return found


def _holds(before: Any, now: Any) -> bool:
    """Whether what was there is there."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(name in now and _holds(value, now[name]) for name, value in before.items())
    return bool(before == now)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
