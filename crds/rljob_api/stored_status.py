"""The status of an RLJob as an API server returns it, written by an operator and a runtime of any release.

Guarantees: every document gives a status. What cannot be read of it, such as fields and values of another
release, is left out; the rest is kept.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from rljob_api.status import Status
from rljob_api.stored import known_part

_FEW = 3
"""Entries that every list of the status may have."""


def read_status(raw: Any) -> Status:
    """The status; without what cannot be read."""
    if not isinstance(raw, Mapping):
        return Status()
    try:
        return Status.model_validate(raw)
    except ValidationError:
        return Status.model_validate(dict(_readable(known_part(Status, raw))))


def _readable(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in raw.items():
        if _fits(name, value):
            yield name, value
        elif isinstance(value, list):
            # One entry of a kind that is not known must not hide the others, such as that the job is done.
            entries = [entry for entry in value if _fits(name, [entry])]
            for few in (entries, entries[:_FEW]):
                if few and _fits(name, few):
                    yield name, few
                    break
        elif isinstance(value, Mapping):
            # Nor may one value the rest of the runtime's report.
            unreadable = _unreadable(name, value)
            kept = {part: below for part, below in value.items() if part not in unreadable}
            if _fits(name, kept):
                yield name, kept


def _unreadable(name: str, value: Mapping[str, Any]) -> set[Any]:
    """Fields of one field of the status in which there is something that cannot be read."""
    try:
        Status.model_validate({name: value})
    except ValidationError as error:
        return {details["loc"][1] for details in error.errors() if len(details["loc"]) > 1}
    return set()


def _fits(name: str, value: Any) -> bool:
    try:
        Status.model_validate({name: value})
    except ValidationError:
        return False
    return True
