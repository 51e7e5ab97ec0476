"""What `rljob validate` finds wrong with a job and the small files that it refers to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read
from tests.support.jobs import job
from tests.support.runtime.manifest_files import make

COPY = {"name": "a", "function": "rljob_runtime.rewards.tasks:copy"}
GOOD_DATA: dict[str, Any] = {"jsonl": {"path": "good.jsonl"}, "maxPromptTokens": 16}
GOOD = {"name": "a", "jsonl": {"path": "good.jsonl"}}


def mixed(other: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Changes of a job: data of two sources, of which the first is in order."""
    return {"training.data": {"sources": [GOOD, other], "maxPromptTokens": 16, **more}}


def check_is_named(
    folder: Path,
    files: Sequence[str],
    changes: Mapping[str, object],
    path: str | None,
    words: Sequence[str] | None,
) -> None:
    """Of a job with these changes, beside these files, one thing alone is wrong: at this path, in these
    words; without a path nothing is."""
    for name in files:
        made = make(folder / name)
        if "/" in name.removeprefix("m/"):  # in a folder that says what is special about the file
            made.rename(made.parent.parent / made.name)
    manifest = folder / "job.yaml"
    manifest.write_text(yaml.safe_dump(job(changes), sort_keys=False))
    errors, warnings = check(read(manifest))
    found = [str(finding) for finding in errors]
    assert warnings == []
    if path is None or words is None:
        assert found == []
        return
    assert len(found) == 1
    for word in [f"  {path}: ", *words]:
        assert word in found[0]
