"""What a manifest refers to: model folders, tokenizers, data and rewards that are missing or do not fit."""

import json
import string
import struct
import sys
from pathlib import Path

import pytest
import yaml

from rljob_runtime.checks import (
    ModelFolderError,
    check,
    folder_parameters,
    model_parameters,
    random_parameters,
)
from rljob_runtime.manifest import read
from tests.jobs import job


@pytest.mark.parametrize(
    ("files", "changes", "path", "words"),
    [
        ([], {}, None, None),
        ([], {"training.model": {"path": "m"}}, "spec.training.model.path", ["no folder", "config.json"]),
        (
            ["m/model.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["has no config.json"],
        ),
        (
            ["m/config.json"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["no *.safetensors"],
        ),
        (
            ["m/config.json", "m/broken.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["cut short"],
        ),
        (["m/config.json", "m/model.safetensors"], {"training.model": {"path": "m"}}, None, None),
        (
            ["m/config.json", "m/model.safetensors"],
            {
                "training.model": {"path": "m"},
                "training.tokenizer.characters.alphabet": string.ascii_letters + string.digits,
            },
            "spec.training.tokenizer",
            ["66", "64"],
        ),
        (
            ["m/config.json", "m/model.safetensors"],
            {"training.model": {"path": "m"}, "training.rollout.maxResponseTokens": 100},
            "spec.training.rollout.maxResponseTokens",
            ["is 116", "max_position_embeddings (64"],
        ),
        (
            [],
            {"training.reward.function": "rljob_runtime.rewards.tasks:coppy"},
            "spec.training.reward.function",
            ["coppy", "copy"],
        ),
        ([], {"training.reward.function": "nowhere:f"}, "spec.training.reward.function", ["nowhere"]),
        (["mine.py"], {"training.reward.function": "mine:score"}, None, None),
        (
            [],
            {"training.data": {"jsonl": {"path": "d.jsonl"}, "maxPromptTokens": 16}},
            "spec.training.data.jsonl",
            ["d.jsonl"],
        ),
        (
            ["empty.jsonl"],
            {"training.data": {"jsonl": {"path": "empty.jsonl"}, "maxPromptTokens": 16}},
            "spec.training.data.jsonl",
            ["empty.jsonl"],
        ),
        (
            ["bad.jsonl"],
            {"training.data": {"jsonl": {"path": "bad.jsonl"}, "maxPromptTokens": 16}},
            "spec.training.data.jsonl",
            ["2"],
        ),
    ],
)
def test_each_thing_is_named(tmp_path, files, changes, path, words):
    for name in files:
        make(tmp_path / name)
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job(changes), sort_keys=False))
    found = [str(finding) for finding in check(read(manifest))]
    if path is None:
        assert found == []
        return
    assert len(found) == 1
    for word in [f"  {path}: ", *words]:
        assert word in found[0]


def test_independent_mistakes_are_told_together_with_their_lines(tmp_path):
    manifest = tmp_path / "job.yaml"
    changes = {"training.reward.function": "nowhere:f", "training.model": {"path": "m"}}
    manifest.write_text(yaml.safe_dump(job(changes), sort_keys=False))
    lines = manifest.read_text().splitlines()
    found = check(read(manifest))
    assert sorted(lines[finding.line - 1].strip() for finding in found) == ["function: nowhere:f", "path: m"]


def test_a_module_beside_the_manifest_shadows_nothing_later(tmp_path):
    make(tmp_path / "mine.py")
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job({"training.reward.function": "mine:score"})))
    before = list(sys.path)
    assert check(read(manifest)) == []
    assert sys.path == before


def test_parameters_of_a_folder(tmp_path):
    make(tmp_path / "model.safetensors")
    assert folder_parameters(tmp_path) == 3 * 4 + 5


@pytest.mark.parametrize("content", [b"", b"\x05", struct.pack("<Q", 100) + b"{"])
def test_a_broken_weights_file_is_named(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ModelFolderError, match=r"x\.safetensors is not a safetensors file"):
        folder_parameters(tmp_path)


def test_parameters_of_a_random_model(tmp_path):
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job()))
    found = read(manifest).job
    shape = found.spec.training.model.random
    assert shape is not None
    # 2 layers of 64 x (12 heads x 32 + 3 x 192), and two embeddings of 64 for each token.
    assert random_parameters(shape, 40) == 2 * 64 * (12 * 32 + 3 * 192) + 2 * 40 * 64
    assert model_parameters(found, tmp_path) == random_parameters(shape, 40), "36 letters and 4 more"


def make(path: Path) -> None:
    """A small file of the kind that its name says."""
    path.parent.mkdir(exist_ok=True)
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
            "b": {"dtype": "F32", "shape": [5], "data_offsets": [48, 68]},
        }
    ).encode()
    contents = {
        "config.json": json.dumps({"vocab_size": 64, "max_position_embeddings": 64}).encode(),
        "model.safetensors": struct.pack("<Q", len(header)) + header + bytes(68),
        "broken.safetensors": struct.pack("<Q", 1000) + b"{",
        "mine.py": b"def score(sample):\n    return 1.0\n",
        "empty.jsonl": b"",
        "bad.jsonl": b'{"prompt": "ab", "answer": "ab"}\n{"prompt": \n',
    }
    path.write_bytes(contents[path.name])
