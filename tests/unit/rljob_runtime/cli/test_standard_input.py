"""Manifests that come by standard input or a pipe: what they are called, and where their files are."""

import io
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rljob_runtime.cli import main
from tests.support.jobs import job


@pytest.mark.parametrize(
    ("command", "changes", "code", "words"),
    [
        ("validate -", {}, 0, "<stdin>: valid\n"),
        ("validate -", {"accelerator": "tpu"}, 2, "<stdin>:6  spec.accelerator: 'tpu' is not allowed"),
        # What a manifest refers to is beside the folder that the command is called in.
        (
            "validate -",
            {"training.data": {"jsonl": {"path": "rows.jsonl"}, "maxPromptTokens": 16}},
            0,
            "valid",
        ),
        (
            "validate -",
            {"training.data": {"jsonl": {"path": "rows.jsonl"}, "maxPromptTokens": 16}, "accelerator": "tpu"},
            2,
            "\n1 error. Nothing was started.\n",
        ),
        ("simulate - --seeds 1 --steps 2", {}, 0, "test: 1 trainer, 1 fast and 0 heavy workers"),
        (
            "simulate - --seeds 1 --steps 2",
            {"training": {}},
            2,
            "<stdin>:7  spec.training.model: must be set",
        ),
        ("render - --runtime-image cpu=a", {}, 0, "kind: RayCluster"),
        ("render -", {}, 2, "<stdin>:5  spec.image: must be set"),
        ("run -", {"accelerator": "tpu"}, 2, "<stdin>:6  spec.accelerator: 'tpu' is not allowed"),
    ],
)
def test_a_manifest_may_come_by_standard_input(tmp_path, capsys, monkeypatch, command, changes, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "abc", "answer": "abc"}\n')
    piped(monkeypatch, yaml.safe_dump(job(changes), sort_keys=False))
    assert main(command.split()) == code
    out, err = capsys.readouterr()
    assert words in out + err


def test_a_manifest_by_a_pipe_is_as_if_it_were_in_the_folder(tmp_path):
    """As by `rljob validate <(helm template ...)`, which names a place that holds nothing beside it."""
    data = {"jsonl": {"path": "rows.jsonl"}, "maxPromptTokens": 16}
    write(tmp_path / "job.yaml", {"training.data": data})
    (tmp_path / "rows.jsonl").write_text('{"prompt": "abc", "answer": "abc"}\n')
    command = f"{shlex.quote(sys.executable)} -m rljob_runtime.cli validate <(cat job.yaml)"
    ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=60)
    assert (ended.stdout.decode().endswith(": valid\n"), ended.stderr, ended.returncode) == (True, b"", 0)


def test_what_is_read_from_standard_input_is_read_once(tmp_path, capsys, monkeypatch):
    """Also where a mistake is looked up in it after it has been read."""
    path = write(tmp_path / "job.yaml")
    piped(monkeypatch, "trainer: {}\nlengths:\n  mean: 1e6\n")
    assert main(["simulate", str(path), "--assumptions", "-"]) == 2
    assert capsys.readouterr().err.startswith("<stdin>:3  lengths.mean: 1e+06 is above")
    piped(monkeypatch, "lengths: {mean: 4}\n")
    assert main(["simulate", str(path), "--assumptions", "-", "--seeds", "1", "--steps", "2"]) == 0
    assert "Assumed (from <stdin>)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "<stdin>:1  the file is empty"),
        (b"a: 1\n# caf\xe9\n", "<stdin>:2  is not UTF-8 text"),
        (b"#" * (5 << 20), "<stdin>:1  cannot be read: it has more than 4 MiB"),
    ],
    ids=["nothing", "no text", "too much"],
)
def test_standard_input_that_is_no_manifest(capsys, monkeypatch, content, words):
    piped(monkeypatch, content)
    assert main(["validate", "-"]) == 2
    assert capsys.readouterr().err.startswith(words)


def piped(monkeypatch: pytest.MonkeyPatch, content: str | bytes) -> None:
    """Have standard input be this."""
    raw = content.encode() if isinstance(content, str) else content
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))


def write(path: Path, changes: dict[str, object] | None = None) -> Path:
    path.write_text(yaml.safe_dump(job(changes), sort_keys=False))
    return path
