"""`training.evaluation` from a launch's validation; the fields of the training data must be there.

verl validates every `test_freq` steps, in its fully-async recipe every so many weight versions. A job
evaluates every so many versions, with the initial weights and with the last ones besides.
"""

import re
from pathlib import PurePosixPath
from typing import Any

from rljob_runtime.authoring.verl.given import Given
from rljob_runtime.authoring.verl.learning import local_path
from rljob_runtime.authoring.verl.values import items

_FILES = "data.val_files"
_SAMPLING = "actor_rollout_ref.rollout.val_kwargs"
_DATA = "spec.training.data"
_FIELD = "training.evaluation"
_MOST_SETS = 8


def evaluation(given: Given) -> None:
    """Held-out sets, how often and how they are evaluated; nothing where verl does not repeat validation."""
    key = "rollout.test_freq" if given.known("rollout.test_freq") else "trainer.test_freq"
    every = given.integer(key)
    if every is None or every < 1:
        return
    override = given.overrides.get(_FILES)
    files = [str(item) for item in items(override.value)] if override and given.known(_FILES) else []
    paths = [path for file in files if (path := local_path(given, _FILES, file)) is not None]
    if not paths:
        given.tell(key, f"no file of data.val_files is known: nothing is evaluated until {_FIELD} is written")
        return
    if len(paths) > _MOST_SETS:
        given.tell(_FILES, f"a job has at most {_MOST_SETS} sets: the first of {len(paths)} are taken")
    sets = [_set(given, name, path) for name, path in _named(paths[:_MOST_SETS])]
    given.put(f"{_FIELD}.sets", sets, given.origin(_FILES))
    if not given.take(key, f"{_FIELD}.everyVersions", every):
        return
    _responses(given)


def _set(given: Given, name: str, path: str) -> dict[str, Any]:
    kind = "jsonl" if path.endswith((".jsonl", ".json")) else "parquet"
    data: dict[str, Any] = {kind: {"path": path}}
    for field in ("promptField", "answerField", "maxPromptTokens", "longPrompts"):
        if (found := given.fields.get(f"{_DATA}.{field}")) is not None:
            data[field] = found.value
    return {"name": name, "data": data}


def _named(paths: list[str]) -> list[tuple[str, str]]:
    """Each path with a name of its own: its folder's, where that tells the files apart, and the file's."""
    found: list[tuple[str, str]] = []
    for path in paths:
        file = PurePosixPath(path)
        words = "-".join(part for part in (file.parent.name, file.stem) if part)
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", words)
        name = name if re.match(r"[A-Za-z_]", name) else f"set-{name}"
        name, taken = name[:44].rstrip("-"), {each for each, _ in found}
        found.append((name if name not in taken else f"{name}-{len(found) + 1}", path))
    return found


def _responses(given: Given) -> None:
    """How many responses, and how they are drawn: by verl's defaults one, of the most probable tokens."""
    count = given.integer(f"{_SAMPLING}.n")
    if count is not None:
        given.take(f"{_SAMPLING}.n", f"{_FIELD}.samplesPerPrompt", count)
    # In training another value may count, which is that of an evaluation where it says none.
    for name, field, default in (
        ("temperature", "temperature", 0.0),
        ("top_p", "topP", 1.0),
        ("top_k", "topK", 0),
    ):
        key = f"{_SAMPLING}.{name}"
        value = given.number(key) if name != "top_k" else given.integer(key)
        if value is not None and name == "top_k":
            value = max(0, value)  # -1 is off there
        if value is None or not given.take(key, f"{_FIELD}.sampling.{field}", value):
            given.put(f"{_FIELD}.sampling.{field}", default, f"verl's default of {key}")
