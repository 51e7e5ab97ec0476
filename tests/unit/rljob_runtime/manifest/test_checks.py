"""What a manifest refers to: model folders, tokenizers, data and rewards that are missing or do not fit."""

import errno
import json
import string
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors import SafetensorError

from rljob_api.model import RandomExperts
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest import reward_trial
from rljob_runtime.manifest.checks import check, model_parameters, random_parameters
from rljob_runtime.manifest.load import read
from rljob_runtime.weights.model_files import ModelFolderError, folder_parameters, loading, read_config
from tests.support.jobs import REMOVED, job
from tests.support.runtime.traces import lines, written

COPY = {"name": "a", "function": "rljob_runtime.rewards.tasks:copy"}
GOOD_DATA = {"jsonl": {"path": "good.jsonl"}, "maxPromptTokens": 16}
GOOD = {"name": "a", "jsonl": {"path": "good.jsonl"}}
LOSS, ADVANTAGE = "training.algorithm.policyLoss.custom", "training.algorithm.advantage.custom"
OWN = "tests.support.runtime.own_objective"
PAIRS = {"training.parallel.tensorParallel": 2, "pools.trainer.replicas": 2}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "factor": 8.0,
    "original_max_position_embeddings": 8, "short_factor": [1.0], "long_factor": [4.0],
}  # fmt: skip
MATH = "rljob_runtime.rewards.math:math_answer"


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """Beside other work it takes seconds to import math-verify."""
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)


def mixed(other, **more):
    return {"training.data": {"sources": [GOOD, other], "maxPromptTokens": 16, **more}}


@pytest.mark.parametrize(
    ("files", "changes", "path", "words"),
    [
        ([], {}, None, None),
        (
            [],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["no folder", "config.json", "Models are not fetched: hf download NAME --local-dir "],
        ),
        (
            ["m/model.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["has no config.json: it is not the folder of a Hugging Face model."],
        ),
        (
            ["m/adapter_config.json", "m/adapter_model.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["holds an adapter alone (adapter_config.json): merge it"],
        ),
        (
            ["m/config.json"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["no *.safetensors"],
        ),
        (
            ["m/config.json", "m/broken/model.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["cut short"],
        ),
        (
            ["m/config.json", "m/model.safetensors"],
            {"training.model": {"path": "m"}, "training.tokenizer": REMOVED},
            "spec.training.model.path",
            ["no tokenizer in it"],
        ),
        (
            ["m/new/config.json", "m/model.safetensors"],
            {"training.model": {"path": "m"}, "training.tokenizer": REMOVED},
            "spec.training.model.path",
            ['no model_type "qwen33"', "the nearest that it has is qwen3"],
        ),
        (
            ["m/new/config.json", "m/model.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ['no model_type "qwen33"', "the nearest that it has is qwen3"],
        ),
        (
            ["m/translator/config.json", "m/model.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ['no causal language model of the model_type "t5"', "only one that predicts the next token"],
        ),
        (
            ["m/quantized/config.json", "m/model.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["quantized weights (fp8 in quantization_config): weights in bfloat16, float16 or float32"],
        ),
        (
            ["m/capped/config.json", "m/model.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["a model with attn_logit_softcapping in config.json is not supported by the trainer"],
        ),
        (
            ["m/turning/config.json", "m/model.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["a model with rope_type longrope in config.json rotates all samples", "to 8 together"],
        ),
        (
            ["good.jsonl"],
            {"training.data": {**GOOD_DATA, "answerField": "anser"}},
            "spec.training.data.answerField",
            ['no field "anser" in any row; the rows have prompt, answer. Did you mean answer?'],
        ),
        (["good.jsonl"], {"training.data": GOOD_DATA, "training.reward.function": MATH}, None, None),
        (
            ["unanswered/good.jsonl"],
            {"training.data": GOOD_DATA, "training.reward.function": MATH},
            "spec.training.data.answerField",
            ['no field "answer" in any row, and the reward compares with an answer'],
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
            {"training.parallel.tensorParallel": 4, "pools.trainer.replicas": 4},
            "spec.training.parallel.tensorParallel",
            ["is 4, which does not divide the model's num_key_value_heads 2", "set one of 1, 2"],
        ),
        ([], {"training.parallel.tensorParallel": 2, "pools.trainer.replicas": 4}, None, None),
        (
            ["m/config.json", "m/model.safetensors"],
            {"training.model": {"path": "m"}, **PAIRS},
            None,
            None,
        ),
        (
            ["m/fused/config.json", "m/model.safetensors"],
            {"training.model": {"path": "m"}, **PAIRS},
            "spec.training.parallel.tensorParallel",
            ["Phi3ForCausalLM has colwise_gather_output", "in its plan for splitting its layers", "set 1"],
        ),
        (
            ["m/config.json", "m/model.safetensors"],
            {
                "training.model": {"path": "m"},
                "pools.trainer.replicas": 8,
                "training.parallel.contextParallel": {"fixed": {"degree": 8}, "attention": "ulysses"},
            },
            "spec.training.parallel.contextParallel.attention",
            ["attention heads (4)", "(up to 8): set allGather, or a lower degree"],
        ),
        (
            ["m/config.json", "m/model.safetensors"],
            {
                "training.model": {"path": "m"},
                "training.parallel.tensorParallel": 3,
                "pools.trainer.replicas": 3,
            },
            "spec.training.parallel.tensorParallel",
            ["num_attention_heads 4 and num_key_value_heads 2", "set one of 1, 2"],
        ),
        (
            [],
            {"training.reward.function": "rljob_runtime.rewards.tasks:coppy"},
            "spec.training.reward.function",
            ["coppy", "copy"],
        ),
        (
            [],
            {"training.reward.arguments": {"overrun_penalti": 1}},
            "spec.training.reward.arguments.overrun_penalti",
            ['tasks:copy" has no argument overrun_penalti. Did you mean overrun_penalty? It takes: overrun'],
        ),
        ([], {"training.reward.function": "nowhere:f"}, "spec.training.reward.function", ["nowhere"]),
        ([], {LOSS: {"function": f"{OWN}:clip"}, ADVANTAGE: {"function": f"{OWN}:ranks"}}, None, None),
        ([], {LOSS: {"function": "nowhere:f"}}, f"spec.{LOSS}.function", ["no module nowhere", "beside"]),
        (
            [],
            {LOSS: {"function": f"{OWN}:clip", "arguments": {"hihg": 1}}},
            f"spec.{LOSS}.arguments.hihg",
            ["Did you mean high"],
        ),
        ([], {LOSS: {"function": f"{OWN}:never_finite"}}, f"spec.{LOSS}.function", ["not finite"]),
        (
            [],
            {ADVANTAGE: {"function": f"{OWN}:by_variance"}},
            f"spec.{ADVANTAGE}.function",
            ["not finite for group 2"],
        ),
        (["mine.py"], {"training.reward.function": "mine:score"}, None, None),
        (
            [],
            {"training.reward": {"functions": [COPY, {**COPY, "name": "b", "function": "nowhere:f"}]}},
            "spec.training.reward.functions[1].function",
            ["nowhere"],
        ),
        (
            [],
            {"training.reward": {"functions": [COPY, {**COPY, "name": "b", "arguments": {"x": 1}}]}},
            "spec.training.reward.functions[1].arguments.x",
            ["has no argument x"],
        ),
        (
            [],
            {"training.reward": {"functions": [COPY], "arguments": {"x": 1}}},
            "spec.training.reward.arguments.x",
            ["has no argument x"],
        ),
        ([], {"training.reward": {"functions": [COPY, {**COPY, "name": "b"}]}}, None, None),
        (
            ["good.jsonl"],
            {"training.data": {**GOOD_DATA, "rewardFields": ["answer", "levle"]}},
            "spec.training.data.rewardFields[1]",
            ['field "levle" is absent or null in each row; the rows have prompt, answer'],
        ),
        (["good.jsonl"], {"training.data": {**GOOD_DATA, "rewardFields": ["answer"]}}, None, None),
        (
            [],
            {"training.data": {"generated": {"task": "copy"}, "maxPromptTokens": 16, "rewardFields": ["a"]}},
            "spec.training.data.rewardFields[0]",
            ['data.generated: field "a" is absent or null in each of the first'],
        ),
        (
            ["good.jsonl"],
            mixed({**GOOD, "name": "b", "rewardFields": ["levle"]}),
            "spec.training.data.sources[1].rewardFields[0]",
            ['field "levle" is absent'],
        ),
        (
            ["good.jsonl"],
            mixed({**GOOD, "name": "b"}, answerField="solution"),
            "spec.training.data.answerField",
            ['no field "solution"'],
        ),
        (
            ["good.jsonl"],
            mixed({"name": "b", "jsonl": {"path": "d.jsonl"}}),
            "spec.training.data.sources[1].jsonl",
            ["d.jsonl"],
        ),
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
        made = make(tmp_path / name)
        if "/" in name.removeprefix("m/"):  # in a folder that says what is special about the file
            made.rename(made.parent.parent / made.name)
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job(changes), sort_keys=False))
    errors, warnings = check(read(manifest))
    found = [str(finding) for finding in errors]
    assert warnings == []
    if path is None:
        assert found == []
        return
    assert len(found) == 1
    for word in [f"  {path}: ", *words]:
        assert word in found[0]


FORCED = {"training.rollout.forcedLengths": "lengths.jsonl"}


@pytest.mark.parametrize(
    ("changes", "trace", "words"),
    [
        ({}, {"prompts": 16}, None),
        ({}, None, ["lengths.jsonl cannot be read: No such file"]),
        ({}, {"prompts": 0}, ["covers the first 0 prompts, and the job trains 16"]),
        ({}, {"prompts": 15}, ["covers the first 15 prompts, and the job trains 16"]),
        ({"training.rollout.samplesPerPrompt": 4}, {"prompts": 16}, ["has 8 responses to a prompt"]),
        ({"training.rollout.maxResponseTokens": 7}, {"prompts": 16}, ["tokens", "maxResponseTokens (7)"]),
        ({"training.schedule": {"epochs": 2, "promptsPerBatch": 4}}, {"prompts": 79}, ["the job trains 80"]),
        ({"training.schedule": {"epochs": 2, "promptsPerBatch": 4}}, {"prompts": 80}, None),
        # More data than are read here: what is left is checked when the job has read them.
        (
            {
                "training.schedule": {"epochs": 2, "promptsPerBatch": 4},
                "training.data.generated": {"task": "copy", "rows": 1000},
            },
            {"prompts": 3, "data": {"source": "", "rows": 3, "content": "", "used": "", "order": ""}},
            None,
        ),
        (
            {},
            {"prompts": 16, "data": {"source": "q", "rows": 3, "content": "", "used": "", "order": ""}},
            ["is of other data than this job's: it was recorded with 3 rows of q, and the 40 rows of"],
        ),
        # A mistake elsewhere hides none here.
        ({"training.tokenizer.characters.alphabet": "xyz"}, {"prompts": 1}, ["covers the first 1 prompts"]),
    ],
)
def test_forced_lengths_that_do_not_fit_are_named(tmp_path, changes, trace, words):
    if trace is not None:
        header = {"data": trace["data"]} if "data" in trace else {}
        written(tmp_path / "lengths.jsonl", lines(np.full((trace["prompts"], 8), 8), 8, **header))
    manifest = tmp_path / "job.yaml"
    document = job({"training.data.generated.rows": 40, **FORCED, **changes})
    manifest.write_text(yaml.safe_dump(document, sort_keys=False))
    errors, _ = check(read(manifest))
    found = [str(each) for each in errors if each.problem.path[-1] == "forcedLengths"]
    assert len(found) == (words is not None), errors
    for word in words or []:
        assert word in found[0]


def test_another_file_for_a_trace_is_named(tmp_path):
    (tmp_path / "lengths.jsonl").write_text('{"step": 0, "time": 1.0, "loss": 0.5}\n')
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job(FORCED), sort_keys=False))
    (found,), _ = check(read(manifest))
    line = manifest.read_text().splitlines()[found.line - 1]
    assert line.strip() == "forcedLengths: lengths.jsonl"
    assert "lengths.jsonl is no length trace: its first line must be" in str(found)


def test_independent_mistakes_are_told_together_with_their_lines(tmp_path):
    manifest = tmp_path / "job.yaml"
    changes = {"training.reward.function": "nowhere:f", "training.model": {"path": "m"}}
    manifest.write_text(yaml.safe_dump(job(changes), sort_keys=False))
    lines = manifest.read_text().splitlines()
    found, _ = check(read(manifest))
    assert sorted(lines[finding.line - 1].strip() for finding in found) == ["function: nowhere:f", "path: m"]


def test_a_module_beside_the_manifest_shadows_nothing_later(tmp_path):
    make(tmp_path / "mine.py")
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job({"training.reward.function": "mine:score"})))
    before = list(sys.path)
    assert check(read(manifest)) == ([], [])
    assert sys.path == before


def test_parameters_of_a_folder(tmp_path):
    make(tmp_path / "model.safetensors")
    assert folder_parameters(tmp_path) == 3 * 4 + 5


def with_size(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05",
        struct.pack("<Q", 100) + b"{",
        with_size(b"[1]"),
        with_size(b'{"a": {}}'),
        with_size(b'{"a": 1}'),
        with_size(b'{"a": {"shape": 3}}'),
        with_size(b'{"a": {"shape": ["x"]}}'),
        b"version https://git-lfs.github.com/spec/v1\n",
    ],
)
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
    experts = RandomExperts(count=8, intermediate_size=64)
    mixture = shape.model_copy(update={"architecture": "qwen3_moe", "experts": experts})
    # In each layer 8 experts of width 64 and their router take the place of the MLP.
    more = 2 * 64 * (3 * 8 * 64 + 8 - 3 * 192)
    assert random_parameters(mixture, 40) == random_parameters(shape, 40) + more


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": "{}"}, r"config\.json names no model_type"),
        ({"config.json": '{"model_type": 3}'}, r"config\.json names no model_type"),
        ({"config.json": "[]"}, r"config\.json holds no JSON object"),
        ({"config.json": "{"}, r"config\.json is not JSON"),
        (
            {"model.safetensors": None},
            "has neither model.safetensors nor .*, only part.safetensors: copy the",
        ),
        ({"model.safetensors": None, INDEX: "{}"}, "index.json has no weight_map"),
        (
            {
                "model.safetensors": None,
                INDEX: '{"weight_map": {"a": "part.safetensors", "b": "2.safetensors"}}',
            },
            r"has no 2\.safetensors, which model\.safetensors\.index\.json names \(1 such file\)",
        ),
        ({"model.safetensors": None, INDEX: '{"weight_map": {"a": "part.safetensors"}}'}, None),
        ({}, None),
    ],
)
def test_the_files_of_a_model(tmp_path, files, message):
    whole = {"config.json": '{"model_type": "qwen3"}', "model.safetensors": "", "part.safetensors": ""}
    for name, content in (whole | files).items():
        if content is not None:
            (tmp_path / name).write_text(content)
    if message is None:
        assert read_config(tmp_path) == {"model_type": "qwen3"}
        return
    with pytest.raises(ModelFolderError, match=message) as error:
        read_config(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (OSError("no file named model.safetensors"), True),
        (ValueError("Unrecognized model"), True),
        (KeyError("hidden_size"), True),
        (SafetensorError("header too small"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (RuntimeError("out of memory"), False),
    ],
)
def test_what_a_model_that_does_not_load_is(tmp_path, error, refused):
    with pytest.raises(UnsupportedModel if refused else type(error)), loading(tmp_path):
        raise error
    with pytest.raises(type(error)), loading(tmp_path / "gone"):
        raise error


def make(path: Path) -> Path:
    """A small file of the kind that its name, and perhaps its folder's, says; its path."""
    path.parent.mkdir(exist_ok=True, parents=True)
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
            "b": {"dtype": "F32", "shape": [5], "data_offsets": [48, 68]},
        }
    ).encode()
    contents = {
        "config.json": config("qwen3"),
        "new/config.json": config("qwen33"),
        "translator/config.json": config("t5"),
        "capped/config.json": config("gemma2"),
        "fused/config.json": config("phi3", pad_token_id=0),
        "turning/config.json": config("llama", rope_parameters=LONGROPE),
        "quantized/config.json": config("qwen3", quantization_config={"quant_method": "fp8"}),
        "model.safetensors": struct.pack("<Q", len(header)) + header + bytes(68),
        "broken/model.safetensors": struct.pack("<Q", 1000) + b"{",
        "mine.py": b"def score(sample):\n    return 1.0\n",
        "empty.jsonl": b"",
        "good.jsonl": b'{"prompt": "ab", "answer": "ab"}\n',
        "unanswered/good.jsonl": b'{"prompt": "ab"}\n',
        "bad.jsonl": b'{"prompt": "ab", "answer": "ab"}\n{"prompt": \n',
    }
    path.write_bytes(contents.get(f"{path.parent.name}/{path.name}", contents.get(path.name, b"")))
    return path


def config(model_type: str, **more: object) -> bytes:
    sizes = {"vocab_size": 64, "max_position_embeddings": 64, "num_attention_heads": 4}
    return json.dumps({"model_type": model_type, "num_key_value_heads": 2, **sizes, **more}).encode()
