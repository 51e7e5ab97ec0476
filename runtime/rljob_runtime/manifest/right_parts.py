"""What a manifest refers to, where some of its fields are wrong: the parts that are right are checked all the
same, so that a misspelt field hides no missing file.

Guarantees: nothing is told that follows from a field that is wrong.
"""

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path as File
from typing import Any

from pydantic import ValidationError

from rljob_api import RLJob
from rljob_api.errors import Path, problems
from rljob_runtime.given_files import called
from rljob_runtime.manifest.load import Finding, find, folder_of
from rljob_runtime.manifest.source import YamlSource

_ALL = frozenset({"model", "tokenizer", "data", "reward", "evaluation"})
_NEEDS: dict[str | int, frozenset[str]] = {
    "model": frozenset({"model"}),
    "tokenizer": frozenset({"model", "tokenizer"}),
    "reward": frozenset({"reward"}),
    "data": _ALL - {"evaluation"},
    "evaluation": _ALL,
    "loggers": frozenset({"loggers"}),
    "checkpoint": frozenset({"checkpoint"}),
}
"""Fields of spec.training that refer to something, and which of them must be right for what is found there to
be so."""
_SCHEDULE = ("spec", "training", "schedule")
_ROUNDS = 6
"""Where a field is taken out, a rule between others may be broken, which is one more field to take out, and
what lacks a field goes whole."""


def check_right_parts(file: File, source: YamlSource, wrong: Sequence[Finding]) -> list[Finding]:
    """What is wrong with what the right parts of the manifest in `file` refer to, where `wrong` are its
    fields that are not; nothing where it cannot be told which parts are right."""
    from rljob_runtime.manifest.checks import check_job

    job, taken_out = _without_wrong(source.value, [each.problem.path for each in wrong])
    if job is None:
        return []
    found, _ = check_job(job, folder_of(file))
    right = [each for each in found if follows_from_none(each.path, taken_out)]
    return [find(called(file), source, each) for each in right]


def follows_from_none(place: Path, wrong: Iterable[Path]) -> bool:
    """Whether what is found at a place of a job is so whatever the wrong fields were meant to be."""
    if place[:2] != ("spec", "training") or len(place) < 3 or place[2] not in _NEEDS:
        return False
    touched = [path[2] if len(path) > 2 else None for path in wrong if path[:2] == ("spec", "training")]
    return None not in touched and not _NEEDS[place[2]] & set(touched)


def without(document: dict[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """A copy of a document without what is at the paths; one that leads nowhere takes nothing out."""
    left = copy.deepcopy(document)
    # The last item of a list first: the others keep their places.
    for path in sorted(
        set(paths), key=lambda path: [(isinstance(key, str), key) for key in path], reverse=True
    ):
        inner: Any = left
        try:
            for key in path[:-1]:
                inner = inner[key]
            del inner[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue
    return left


def _without_wrong(document: dict[str, Any], wrong: Sequence[Path]) -> tuple[RLJob | None, list[Path]]:
    """The job without its wrong fields, None where it is none without them; and the paths of all these."""
    taken_out: list[Path] = []
    for _ in range(_ROUNDS):
        wrong = [_there(document, path) for path in wrong]
        # A job without its training is none.
        if any(path == ("spec", "training")[: len(path)] for path in wrong):
            break
        taken_out += wrong
        document = without(document, wrong)
        if any(path[:3] == _SCHEDULE for path in wrong):
            # No job is without one, and nothing that is looked for depends on which.
            document["spec"]["training"]["schedule"] = {"totalSteps": 1, "promptsPerBatch": 1}
        try:
            return RLJob.model_validate(document), taken_out
        except ValidationError as error:
            wrong = [each.path for each in problems(error, RLJob)]
    return None, taken_out


def _there(document: dict[str, Any], path: Path) -> Path:
    """The path, or that of what lacks it."""
    inner: Any = document
    for depth, key in enumerate(path):
        try:
            inner = inner[key]
        except (KeyError, IndexError, TypeError):
            return path[:depth]
    return path
