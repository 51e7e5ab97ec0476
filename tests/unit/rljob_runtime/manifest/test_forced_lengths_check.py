"""Length traces that a manifest refers to, and that do not fit its job."""

import numpy as np
import pytest
import yaml

from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read
from tests.support.jobs import job
from tests.support.runtime.traces import lines, written

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
        ({}, {"prompts": 16, "prompt_tokens": 16}, None),
        ({}, {"prompts": 16, "prompt_tokens": 17}, ["has a prompt of 17 tokens (line 2: prompt 0)", "(16)"]),
        # A mistake elsewhere hides none here.
        ({"training.tokenizer.characters.alphabet": "xyz"}, {"prompts": 1}, ["covers the first 1 prompts"]),
    ],
)
def test_forced_lengths_that_do_not_fit_are_named(tmp_path, changes, trace, words):
    if trace is not None:
        header = {"data": trace["data"]} if "data" in trace else {}
        content = lines(np.full((trace["prompts"], 8), 8), 8, **header)
        for line in content[1:]:
            line["prompt_tokens"] = trace.get("prompt_tokens", 0)
        written(tmp_path / "lengths.jsonl", content)
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
