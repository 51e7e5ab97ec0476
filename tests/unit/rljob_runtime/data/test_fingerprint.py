"""Which changes of the data stop a resume, and what a person is told."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rljob_api.data import Data
from rljob_api.schedule import Schedule
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.fingerprint import DataFingerprint, difference
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.driver.job_settings import Origin
from rljob_runtime.driver.resume import ResumeRefused, check_resume
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.state import JobState
from rljob_runtime.trainer import checkpoint
from rljob_runtime.trainer.checkpoint import CheckpointError, Head

ROWS = [{"prompt": letter * 3, "answer": letter} for letter in "abcdefgh"]


def fingerprint(
    folder: Path,
    rows: list[dict[str, Any]] = ROWS,
    seed: int = 0,
    name: str = "p.jsonl",
    alphabet: str = "abcdefgh",
    **data: Any,
) -> DataFingerprint:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    parsed = Data.model_validate({"jsonl": {"path": name}, **data})
    return PromptSource(parsed, CharacterTokenizer(alphabet), seed, folder).fingerprint


CHANGES: dict[str, tuple[dict[str, Any], str | None]] = {
    "nothing": ({}, None),
    "the file's name": ({"name": "q.jsonl"}, None),
    "a field that nobody reads": ({"rows": [{**row, "note": 1} for row in ROWS]}, None),
    "a limit that leaves nothing out": ({"maxPromptTokens": 9}, None),
    "letters that no prompt has": ({"alphabet": "abcdefghij"}, None),
    "a row more": (
        {"rows": [*ROWS, ROWS[0]]},
        "p.jsonl is not the data that the run began with (8 rows then, 9 now): put the earlier data back to "
        "go on with --resume, or begin anew with --restart",
    ),
    "a prompt": (
        {"rows": [{"prompt": "hhh", "answer": "a"}, *ROWS[1:]]},
        "(other content in its 8 rows)",
    ),
    "an answer": ({"rows": [*ROWS[:-1], {"prompt": "hhh", "answer": "g"}]}, "(other content in its 8 rows)"),
    "the order of rows": ({"rows": ROWS[::-1]}, "(other content in its 8 rows)"),
    "the field of the prompts": ({"promptField": "answer", "answerField": "prompt"}, "(other content"),
    "the seed": (
        {"seed": 3},
        "come shuffled with seed 3, and came shuffled with seed 0 when the run began: set training.seed and "
        "data.shuffle back",
    ),
    "no shuffle": ({"shuffle": False}, "come in order, and came shuffled with seed 0 when the run began"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_stops_a_resume(tmp_path: Path, change: str) -> None:
    arguments, words = CHANGES[change]
    why = difference(fingerprint(tmp_path), fingerprint(tmp_path, **arguments))
    if words is None:
        assert why is None
    else:
        assert why is not None and words in why and "--restart" in why


@pytest.mark.parametrize(("limit", "same"), [(6, True), (7, True), (8, False)])
def test_other_prompts_left_out(tmp_path: Path, limit: int, same: bool) -> None:
    """The last prompt has 8 tokens, all others 5."""
    rows = [*ROWS, {"prompt": "aaaaaa"}]
    recorded, now = (
        fingerprint(tmp_path, rows, maxPromptTokens=tokens, longPrompts="skip") for tokens in (5, limit)
    )
    why = difference(recorded, now)
    assert (why is None) == same
    assert same or "left out for their length than when the run began: set data.maxPromptTokens" in str(why)


def test_without_shuffle_the_seed_does_not_matter(tmp_path: Path) -> None:
    first, second = (fingerprint(tmp_path, seed=seed, shuffle=False) for seed in (1, 2))
    assert difference(first, second) is None


def test_generated_data_depends_on_the_seed(tmp_path: Path) -> None:
    data = Data.model_validate({"generated": {"task": "copy"}})
    first, again, other = (
        PromptSource(data, CharacterTokenizer("abcdefgh"), seed, tmp_path).fingerprint for seed in (1, 1, 2)
    )
    assert difference(first, again) is None
    assert difference(first, other) is not None


def saved(root: Path, data: DataFingerprint) -> Path:
    """A checkpoint without tensors."""
    partial = checkpoint.begin(root, 3)
    state = JobState(3, Ledger(), [], GroupCounts(), data)
    checkpoint.write_head(partial, Head(updates=3), msgspec.msgpack.encode(state))
    return checkpoint.finish(partial, keep=2)


def test_a_resume_is_checked_against_the_newest_checkpoint(tmp_path: Path) -> None:
    recorded, root, schedule = fingerprint(tmp_path), tmp_path / "checkpoints", Schedule(total_steps=5)
    assert check_resume(root, recorded, schedule, len(ROWS)) == Origin()
    folder = saved(root, recorded)
    assert check_resume(root, recorded, schedule, len(ROWS)) == Origin(step=3, updates=3)
    with pytest.raises(DataError, match="is not the data that the run began with"):
        check_resume(root, fingerprint(tmp_path, ROWS[1:]), schedule, len(ROWS))
    with pytest.raises(ResumeRefused, match=r"step_3 has 3 steps, and .*totalSteps is 2: set it to 3"):
        check_resume(root, recorded, Schedule(total_steps=2), len(ROWS))
    (folder / "extra.bin").write_bytes(b"\x81")
    with pytest.raises(
        CheckpointError, match="damaged, or of another model: take the model that the run began with"
    ):
        check_resume(root, recorded, schedule, len(ROWS))


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    partial = checkpoint.begin(tmp_path, 3)
    checkpoint.write_head(partial, Head(updates=3, format=1), b"")
    folder = checkpoint.finish(partial, keep=2)
    with pytest.raises(CheckpointError, match=r"has format 1, this version of rljob reads \d"):
        checkpoint.read_head(folder)
