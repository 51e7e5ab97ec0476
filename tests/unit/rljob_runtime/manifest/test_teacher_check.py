"""A teacher that is not there, has other tokens than the policy, or is too small for its samples."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rljob_api import RLJob
from rljob_api.errors import problems
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.manifest.adapters import model_size
from rljob_runtime.manifest.checks import check_job
from rljob_runtime.manifest.teacher_check import other_tokens
from tests.support.jobs import job
from tests.support.runtime.manifest_files import write_weights

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
PATH = "spec.training.algorithm.distillation.teacher.path"
CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 16,
    "head_dim": 32,
}


@pytest.mark.parametrize(
    ("policy", "teacher", "words"),
    [
        ({"a": 0, "b": 1}, {"b": 1, "a": 0}, None),
        ({"a": 0, "b": 1}, {"a": 0, "b": 1, "<think>": 2}, None),
        (
            {"a": 0, "b": 1, "c": 2},
            {"a": 0, "b": 2, "c": 1},
            "of the 3 tokens of the policy's, 2 have another number in the teacher's or none "
            "('b' is 1, and 2 in the teacher's)",
        ),
        ({"a": 0, "b": 1}, {"a": 0}, "1 have another number in the teacher's or none ('b' is 1, and not in"),
    ],
)
def test_tokens(policy: dict[str, int], teacher: dict[str, int], words: str | None) -> None:
    found = other_tokens(policy, teacher)
    assert found is None if words is None else words in str(found)


def teacher(folder: Path, alphabet: str = ALPHABET, **config: Any) -> Path:
    """A model's folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    write_weights(folder / "model.safetensors", CONFIG | config | {"model_type": "qwen3"})
    if alphabet:
        CharacterTokenizer(alphabet).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("made", "changes", "words"),
    [
        ({}, {}, []),
        ({"vocab_size": 40}, {"training.model.random": {"vocabularySize": 40}}, []),
        # As many tokens as the policy's tokenizer, of which the policy's model has the next multiple of 32.
        ({"vocab_size": 40}, {}, ["has 40 tokens", "the policy may draw 64"]),
        (None, {}, ["no folder", "config.json"]),
        ({"alphabet": ""}, {}, ["no tokenizer in it: copy the files of the model's tokenizer there"]),
        ({"model_type": "qwen33"}, {}, ['no model_type "qwen33"']),
        ({"alphabet": "b" + ALPHABET.replace("b", "")}, {}, ["has another tokenizer: of the 40 tokens"]),
        ({"vocab_size": 32}, {}, ["has 32 tokens", "the policy may draw 64"]),
        (
            {"max_position_embeddings": 20},
            {},
            ["takes samples of 20 tokens at most", "rollout.maxResponseTokens is 24"],
        ),
        (
            {"num_key_value_heads": 1},
            {"training.parallel.tensorParallel": 2, "pools.trainer.replicas": 2},
            ["cannot be split as the policy is: training.parallel.tensorParallel is 2"],
        ),
    ],
)
def test_what_is_wrong_with_a_teacher(
    tmp_path: Path, made: dict[str, Any] | None, changes: dict[str, Any], words: list[str]
) -> None:
    if made is not None:
        teacher(tmp_path / "t", **made)
    given = {"training.algorithm.distillation": {"teacher": {"path": "t"}}, **changes}
    errors, warnings = check_job(RLJob.model_validate(job(given)), tmp_path)
    assert [str(each).split(": ")[0] for each in errors] == [PATH] * bool(words)
    for word in words:
        assert word in str(errors[0])
    assert warnings == []


SERVED = {"teacher": {"server": {"url": "http://teacher:8000", "model": "t"}}}


def test_of_one_that_a_server_has_nothing_is_looked_for_here(tmp_path: Path) -> None:
    """The server is asked when the job starts."""
    asked = RLJob.model_validate(job({"training.algorithm.distillation": SERVED}))
    assert check_job(asked, tmp_path) == ([], [])
    assert model_size(asked, tmp_path, 1_000).teacher == 0


@pytest.mark.parametrize(
    "url",
    [
        "teacher:8000",
        "ftp://teacher:8000",
        "http://",
        "http://me:secret@teacher:8000",
        "http://teacher:8000/?key=secret",
        "http://teacher:8000/#top",
        "http://teacher:8000/a b",
    ],
)
def test_an_address_is_http_and_has_no_secret(url: str) -> None:
    server = {"url": url, "model": "t"}
    with pytest.raises(ValidationError) as caught:
        RLJob.model_validate(job({"training.algorithm.distillation": {"teacher": {"server": server}}}))
    (problem,) = problems(caught.value, RLJob)
    assert str(problem).startswith(f"{PATH.removesuffix('path')}server.url: must be an http or https address")


def test_the_policy_by_another_name_is_no_teacher(tmp_path: Path) -> None:
    teacher(tmp_path / "m")
    given = {
        "training.model": {"path": "m"},
        "training.algorithm.distillation": {"teacher": {"path": "./m"}},
    }
    errors, _ = check_job(RLJob.model_validate(job(given)), tmp_path)
    assert [str(each).split(": ")[0] for each in errors] == [PATH]
    assert "is model.path (m)" in str(errors[0])


def test_a_teacher_and_a_policy_that_are_not_there_are_told_together(tmp_path: Path) -> None:
    given = {
        "training.model": {"path": "m"},
        "training.tokenizer": None,
        "training.algorithm.distillation": {"teacher": {"path": "t"}},
    }
    errors, _ = check_job(RLJob.model_validate(job(given)), tmp_path)
    assert [str(each).split(": ")[0] for each in errors] == ["spec.training.model.path", PATH]
