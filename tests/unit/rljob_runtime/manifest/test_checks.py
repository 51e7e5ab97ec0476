"""What a manifest refers to: model folders, tokenizers and data that are missing or do not fit."""

import string
import sys

import pytest
import yaml

from rljob_runtime.manifest import reward_trial
from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read
from tests.support.jobs import REMOVED, job
from tests.support.runtime.checked_jobs import COPY, GOOD, GOOD_DATA, check_is_named, mixed
from tests.support.runtime.manifest_files import make

PAIRS = {"training.parallel.tensorParallel": 2, "pools.trainer.replicas": 2}
MATH = "rljob_runtime.rewards.math:math_answer"


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """Beside other work it takes seconds to import math-verify."""
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)


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
            [],
            {"training.model": {"path": "my model"}},
            "spec.training.model.path",
            ["--local-dir '", "/my model'"],
        ),
        (
            [],
            {"training.model": {"path": "~/models/x"}},
            "spec.training.model.path",
            ["/~/models/x: a path is taken as it is written, and ~ is not expanded", "write the whole path"],
        ),
        (
            [],
            {"training.model": {"path": "${HOME}/x"}},
            "spec.training.model.path",
            ["/${HOME}/x: a path is taken as it is written, and ${HOME} is not expanded"],
        ),
        (
            ["m/config.json"],
            {"training.model": {"path": "m/config.json"}},
            "spec.training.model.path",
            ["/m/config.json is a file: name the folder of the model, which has config.json and *.safe"],
        ),
        ([], {"training.tokenizer": {"path": "$T"}}, "spec.training.tokenizer", ["and $T is not expanded"]),
        (
            ["m/config.json"],
            {"training.tokenizer": {"path": "m/config.json"}},
            "spec.training.tokenizer",
            ["/m/config.json is a file: name the folder that has the tokenizer (", "/m?)"],
        ),
        (
            [],
            {"training.data.generated": REMOVED, "training.data.jsonl": {"path": "~me/x.jsonl"}},
            "spec.training.data.jsonl",
            ["/~me/x.jsonl: No such file or directory: a path is taken as it is written, and ~me is not"],
        ),
        (
            [],
            {"training.data.generated": REMOVED, "training.data.huggingFace": {"name": "~/x"}},
            "spec.training.data.huggingFace",
            ["no folder ~/x: a path is taken as it is written, and ~ is not expanded"],
        ),
        (
            [],
            {"training.rollout.forcedLengths": "~/lengths.jsonl"},
            "spec.training.rollout.forcedLengths",
            ["/~/lengths.jsonl: ", "a path is taken as it is written, and ~ is not expanded"],
        ),
        (
            [],
            {"training.checkpoint": {"path": "~/ck"}},
            "spec.training.checkpoint.path",
            [
                "no folder ~/ck: a path is taken as it is written, and ~ is not expanded",
                "write the whole path",
            ],
        ),
        (
            [],
            {"training.checkpoint": {"path": "/data/$USER/ck"}},
            "spec.training.checkpoint.path",
            ["no folder /data/$USER/ck: a path is taken as it is written, and $USER is not expanded"],
        ),
        (
            ["good.jsonl"],
            {"training.checkpoint": {"path": "good.jsonl"}},
            "spec.training.checkpoint.path",
            ["/good.jsonl is a file; name a folder"],
        ),
        (
            ["good.jsonl"],
            {"training.checkpoint": {"path": "good.jsonl/of/checkpoints"}},
            "spec.training.checkpoint.path",
            ["/good.jsonl is a file; name a folder"],
        ),
        (["good.jsonl"], {"training.checkpoint": {"path": "not/there/yet"}}, None, None),
        (["~/good.jsonl"], {"training.checkpoint": {"path": "~"}}, None, None),
        (
            [],
            {"training.reward": {"function": COPY["function"], "arguments": {"overrun_penalty": [9**40]}}},
            "spec.training.reward.arguments.overrun_penalty",
            ["has an integer of more than 64 bits, and a reward gets none: quote it"],
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
            [
                "a model with attn_logit_softcapping 50.0 in config.json, which Qwen3ForCausalLM of",
                "does not apply to its attention, is not supported by the trainer: write null there",
            ],
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
            ["m/config.json", "m/fused/model.safetensors"],
            {"training.model": {"path": "m"}},
            "spec.training.model.path",
            ["mlp.gate_proj.weight is missing in the *.safetensors", "in Qwen3ForCausalLM as it is"],
        ),
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
            ["m/fused/config.json", "m/fused/model.safetensors"],
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
            [],
            {
                "pools.trainer.replicas": 8,
                "training.parallel": {
                    "tensorParallel": 2,
                    "contextParallel": {"fixed": {"degree": 4}, "attention": "ulysses"},
                },
            },
            "spec.training.parallel.contextParallel.attention",
            ["attention heads (4, by parallel.tensorParallel 2 on each rank)", "(up to 4): set allGather"],
        ),
        (
            [],
            {
                "pools.trainer.replicas": 4,
                "training.parallel": {
                    "tensorParallel": 2,
                    "contextParallel": {"fixed": {"degree": 2}, "attention": "ulysses"},
                },
            },
            None,
            None,
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
    check_is_named(tmp_path, files, changes, path, words)


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


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"training.data": {"jsonl": {"path": "gaps.jsonl"}, "maxPromptTokens": 16}}, "data.answerField"),
        (mixed({"name": "b", "jsonl": {"path": "gaps.jsonl"}}), "data.answerField"),
        (
            mixed({"name": "b", "jsonl": {"path": "gaps.jsonl"}, "answerField": "answer"}),
            "data.sources[1].answerField",
        ),
        (
            {"training.data": GOOD_DATA, "training.evaluation": {"everyVersions": 1, "sets": [
                {"name": "e", "data": {"jsonl": {"path": "gaps.jsonl"}}}
            ]}},
            "evaluation.sets[0].data",
        ),
    ],
)  # fmt: skip
def test_rows_without_an_answer_are_warned_of(tmp_path, changes, path):
    make(tmp_path / "good.jsonl")
    (tmp_path / "gaps.jsonl").write_text(
        '{"prompt": "cd", "answer": "1"}\n{"prompt": "ef", "answer": null}\n'
    )
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job({**changes, "training.reward": {"function": MATH}})))
    errors, warnings = check(read(manifest))
    assert errors == []
    (told,) = [each.problem for each in warnings if "no answer" in str(each)]
    assert str(told).startswith(f"spec.training.{path}: 1 of 2 rows has no answer")
