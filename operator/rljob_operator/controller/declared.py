"""What a definition of RLJobs declares, beside what this release has. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

ESSENTIAL = frozenset(
    {
        *(
            f"status.{name}"
            for name in (
                "conditions",
                "attempt",
                "failures",
                "restarts",
                "clusterName",
                "headPod",
                "scaleDowns",
            )
        ),
        *(f"status.{name}" for name in ("startTime", "attemptTime", "completionTime")),
        *(f"status.conditions[].{name}" for name in ("type", "status", "reason", "lastTransitionTime")),
        *(f"status.conditions[].type: {name}" for name in ("Running", "Suspended", "Complete", "Failed")),
        *(f"status.scaleDowns[].{name}" for name in ("pool", "victims", "replicas")),
    }
)
"""Paths, as `lacking` gives them, of what an operator that begins to lead cannot do without: it might begin a
second attempt beside the one that runs. The first release had them all: a field that is added is none."""

_NOTHING = object()


def lacking(served: Schema, wanted: Schema, path: str) -> Iterator[str]:
    """Fields, and values of fields, that `wanted` has and `served` has not; the outermost of each. `path`: of
    both."""
    # Such a schema takes any field.
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    there = served.get("properties", {})
    for name, below in wanted.get("properties", {}).items():
        if name in there:
            yield from lacking(there[name], below, f"{path}.{name}")
        else:
            yield f"{path}.{name}"
    if "items" in wanted:
        yield from lacking(served.get("items", {}), wanted["items"], f"{path}[]")
    if "enum" in served:
        yield from (f"{path}: {value}" for value in wanted.get("enum", ()) if value not in served["enum"])


def declared(document: Mapping[str, Any], served: Schema) -> dict[str, Any]:
    """The document without what the schema does not take: fields, values of fields, and entries of lists that
    cannot do without one of these."""
    kept = _declared(document, served)
    return kept if isinstance(kept, dict) else {}


def _declared(value: Any, served: Schema) -> Any:
    """The part of the value that the schema takes; `_NOTHING` where that is none."""
    if "enum" in served and value not in served["enum"]:
        return _NOTHING
    if isinstance(value, list) and "items" in served:
        entries = [_declared(entry, served["items"]) for entry in value]
        return [entry for entry in entries if entry is not _NOTHING]
    open_ended = served.get("x-kubernetes-preserve-unknown-fields") or "properties" not in served
    if open_ended or not isinstance(value, Mapping):
        return value
    fields = served["properties"]
    kept = {name: _declared(below, fields[name]) for name, below in value.items() if name in fields}
    kept = {name: below for name, below in kept.items() if below is not _NOTHING}
    return kept if kept.keys() >= set(served.get("required", ())) else _NOTHING
