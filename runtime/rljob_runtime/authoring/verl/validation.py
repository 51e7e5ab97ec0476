"""`training.evaluation` from a launch's validation; the fields of the training data must be there.

verl validates every `test_freq` steps, in its fully-async recipe every so many weight versions. A job
evaluates every so many versions, with the initial weights and with the last ones besides.
"""

from typing import Any

from rljob_runtime.authoring.verl.files import format_of, local_files, named
from rljob_runtime.authoring.verl.given import Given

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
    paths = local_files(given, _FILES)
    if not paths:
        given.tell(key, f"no file of data.val_files is known: nothing is evaluated until {_FIELD} is written")
        return
    if len(paths) > _MOST_SETS:
        given.tell(_FILES, f"a job has at most {_MOST_SETS} sets: the first of {len(paths)} are taken")
    sets = [_set(given, name, path) for name, path in named(paths[:_MOST_SETS])]
    given.put(f"{_FIELD}.sets", sets, given.origin(_FILES))
    if not given.take(key, f"{_FIELD}.everyVersions", every):
        return
    _responses(given)


def _set(given: Given, name: str, path: str) -> dict[str, Any]:
    data: dict[str, Any] = {format_of(path): {"path": path}}
    for field in ("promptField", "answerField", "maxPromptTokens", "longPrompts"):
        if (found := given.fields.get(f"{_DATA}.{field}")) is not None:
            data[field] = found.value
    return {"name": name, "data": data}


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
