"""`rljob simulate` on manifests: what it prints, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from rljob_runtime.data.length_trace import LengthTraceError, ResponseLine, TraceHeader, read_length_trace
from rljob_runtime.manifest.checks import fingerprint
from rljob_runtime.manifest.load import ManifestError, read
from rljob_runtime.trace.forecast.simulate import Options, forecast
from rljob_runtime.trace.forecast.workloads import recorded
from tests.support.jobs import job
from tests.support.simulated.small_jobs import manifest, site
from tests.support.valid_jobs import GOOD


def trace(
    folder: Path, lengths: list[list[int]], samples: int = 2, cap: int = 64, prompt_tokens: int = 4
) -> Path:
    file = folder / "lengths.jsonl"
    lines: list[object] = [TraceHeader(samples, cap)]
    for uid, group in enumerate(lengths):
        lines += [
            ResponseLine(uid, index, tokens, row=uid, prompt_tokens=prompt_tokens)
            for index, tokens in enumerate(group)
        ]
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return file


def test_a_manifest_alone_is_compared_under_every_policy(tmp_path: Path) -> None:
    text = forecast(Options(manifest(tmp_path, {"training.schedule.promptsPerBatch": 5}), seeds=2))
    assert text.startswith(
        "test: 1 trainer, 2 fast and 1 heavy workers; 5 prompts of 2 responses a step, bound 1; 4 steps, 2 s"
    )
    for policy in ("adjacent", "interleaved", "leastInFlight", "probe", "adaptive"):
        assert f"\n{policy}" in text
    assert text.count(" *") == 1
    assert "\n* the job's. Seconds of responses and groups count from when the bound admits the group" in text
    assert "heavy-0 │" in text
    assert "Assumed (defaults, of an 8 B model on an H200 for each engine" in text
    assert (
        "a version of the weights 0 s to publish, 0 s until engines begin to load it and 2 s to load, the "
        "trainer going on once it is published." in text
    )
    assert "a mean of 16 tokens" in text


FAST_STEP = "of 8 ms + 20 µs a request + 43 ns a KV token"


@pytest.mark.parametrize(
    ("pools", "assumed", "size", "told"),
    [
        ((2, 1, 1), {}, None, f"{FAST_STEP};"),
        ((2, 0, 4), {}, None, f"{FAST_STEP};"),
        (
            (2, 1, 4), {}, None,
            f"{FAST_STEP} on a fast engine, of 3.03 ms + 7.58 µs a request + 16.3 ns a KV token on a heavy "
            "engine;",
        ),
        ((2, 0, 1), {"fixedSeconds": 0.003}, 3, f"{FAST_STEP} on a fast engine, of 3 ms + 20 µs a request"),
        ((0, 1, 1), {"fixedSeconds": 0.003}, None, "of 3 ms + 20 µs a request + 43 ns a KV token;"),
    ],
    ids=["alike", "no heavy pool", "larger heavy engines", "sizes with either pool", "a heavy pool alone"],
)  # fmt: skip
def test_what_engines_cost_is_told_of_those_that_are_simulated(
    tmp_path: Path, pools: tuple[int, int, int], assumed: dict[str, Any], size: int | None, told: str
) -> None:
    """`pools`: fast and heavy engines, and accelerators of a heavy one."""
    file = tmp_path / "assume.yaml"
    file.write_text(yaml.safe_dump({"engines": {"heavy": assumed}} if assumed else {}))
    changes = {
        "accelerator": "nvidia",
        "training.schedule.promptsPerBatch": 1,
        "pools.fastRollout.replicas": pools[0],
        "pools.heavyRollout": {"replicas": pools[1], "acceleratorsPerWorker": pools[2]},
    }
    text = forecast(Options(manifest(tmp_path, changes), assumptions=file, seeds=1, steps=1, size=size))
    assert f"; a decode step {told}" in text
    assert ("; 1 prompt of 2 responses a step, bound 1; 1 step, 1 seed" in text) == (size is None)


def test_what_of_the_job_is_not_simulated_is_told_with_policies_and_with_sizes(tmp_path: Path) -> None:
    file = manifest(tmp_path, {"training.rollout.overSampling": {"rate": 0.25}})
    for size in (None, 4):
        text = forecast(Options(file, seeds=1, steps=2, size=size))
        assert "\n\nNot simulated: over-sampling (training.rollout.overSampling).\n\n" in text
    assert "Not simulated" not in forecast(Options(manifest(tmp_path), seeds=1, steps=2))


def test_the_job_s_own_policy_has_a_star(tmp_path: Path) -> None:
    text = forecast(Options(manifest(tmp_path, {"training.rollout.routing": {"interleaved": {}}}), seeds=1))
    assert "interleaved *" in text
    assert "Requests of each engine under interleaved, first seed:" in text


def test_recorded_lengths_are_taken_as_they_were(tmp_path: Path) -> None:
    file = trace(tmp_path, [[10, 20], [5, 64], [7, 7]])
    work = recorded(read_length_trace(file))(site(), 0)
    assert work.lengths.tolist() == [[10, 20], [5, 64], [7, 7]] * 4
    assert work.prompt_tokens.tolist() == [4] * 12
    assert work.rows.tolist() == [0, 1, 2] * 4
    text = forecast(Options(manifest(tmp_path), trace=file, seeds=1))
    assert f"lengths recorded in {file};" in text
    whole = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(msgspec.json.encode(TraceHeader(2, 64, removed=7)) + b"\n" + b"".join(whole[1:]))
    text = forecast(Options(manifest(tmp_path), trace=file, seeds=1))
    assert f"lengths recorded in {file}, without the 7 groups that were taken out of it;" in text


def test_what_a_trace_lacks_is_told_with_policies_and_sizes_and_on_the_page(tmp_path: Path) -> None:
    file, page = trace(tmp_path, [[10, 20], [5], [7, 7]]), tmp_path / "page.html"
    told = "Recorded lengths: 1 of 3 prompts lacks a response and is left out; what a run has"
    for size, html in ((None, page), (4, None)):
        text = forecast(Options(manifest(tmp_path), trace=file, seeds=1, steps=2, size=size, page=html))
        assert f"\n\n{told}" in text and " 2 prompts stand for the 8 of 2 steps, each up to 4 times; " in text
    assert f"<p>{told}" in page.read_text()
    whole = trace(tmp_path, [[10, 20]] * 8)
    assert "Recorded lengths" not in forecast(Options(manifest(tmp_path), trace=whole, seeds=1, steps=2))


def test_lines_of_a_trace_that_are_no_json_are_told(tmp_path: Path) -> None:
    file = trace(tmp_path, [[10, 20], [5, 64]])
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], '{"uid": 0, "index": 1, "response_tokens": NaN}', *lines[3:]]))
    text = forecast(Options(manifest(tmp_path), trace=file, seeds=1))
    assert f"lengths recorded in {file}, without line 3, which is no whole JSON object;" in text
    file.write_text("\n".join([lines[0], "x", "y"]))
    with pytest.raises(
        LengthTraceError, match="without 2 lines that are no whole JSON objects, line 2 first"
    ):
        forecast(Options(manifest(tmp_path), trace=file, seeds=1))


@pytest.mark.parametrize(
    ("lengths", "samples", "message"),
    [
        ([[5], [6]], 1, "has 1 responses to each prompt, and spec.training.rollout.samplesPerPrompt is 2"),
        (
            [[9, 9], [5, 65]],
            2,
            "has a response of 65 tokens (line 5), and spec.training.rollout.maxResponseTokens is 64",
        ),
        ([], 2, "holds no prompt with all its 2 responses"),
        ([[5], [6]], 2, "holds no prompt with all its 2 responses: each of its 2 lacks some"),
    ],
)
def test_a_trace_of_another_job_is_refused(
    tmp_path: Path, lengths: list[list[int]], samples: int, message: str
) -> None:
    file = trace(tmp_path, lengths, samples, cap=100)
    with pytest.raises(LengthTraceError) as error:
        forecast(Options(manifest(tmp_path), trace=file))
    assert str(error.value).startswith(f"{file} {message}")


@pytest.mark.parametrize("tokens", [9, 2_000_000_000])
def test_a_trace_with_prompts_that_the_job_cannot_have_is_refused(tmp_path: Path, tokens: int) -> None:
    file = trace(tmp_path, [[5, 6], [7, 8]], prompt_tokens=tokens)
    with pytest.raises(LengthTraceError) as error:
        forecast(Options(manifest(tmp_path), trace=file))
    assert str(error.value) == (
        f"{file} has a prompt of {tokens:,} tokens (line 2), and spec.training.data.maxPromptTokens is 8: it "
        "was recorded by another job"
    )


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LengthTraceError, match="is no length trace"):
        forecast(Options(manifest(tmp_path), trace=manifest(tmp_path)))


def test_assumptions_that_contradict_the_job_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "assume.yaml"
    for text, message in (
        (
            "lengths: {mean: 100}",
            r"1  lengths.mean: 100 is above spec.training.rollout.maxResponseTokens \(64\): lower it",
        ),
        (
            "engines:\n  fast:\n    kvTokens: 20\n",
            r"3  engines.fast.kvTokens: 20 is below the longest prompt and response together, \d+ tokens",
        ),
        ("engines:\n  heavy: {kvTokens: 20}\n", r"2  engines.heavy.kvTokens: 20 is below"),
        (
            "lengths: {promptTokens: 1000}\nengines: {fast: {kvTokens: 900}}\n",
            r"2  engines.fast.kvTokens: 900 is below the longest prompt and response together, 10\d\d tokens",
        ),
    ):
        file.write_text(text)
        with pytest.raises(ManifestError, match=rf"assume.yaml:{message}"):
            forecast(Options(manifest(tmp_path), assumptions=file, seeds=1))


def test_defaults_that_contradict_the_job_name_the_field_to_set(tmp_path: Path) -> None:
    long = {
        "training.rollout": {"maxResponseTokens": 1_000_000, "samplesPerPrompt": 2},
        "training.model": {"random": {"maxPositionEmbeddings": 1_048_576}},
        "training.parallel": {"maxTokensPerMicroBatch": 2_000_000},
    }
    file = trace(tmp_path, [[900_000, 5]], cap=1_000_000)
    with pytest.raises(ManifestError, match=r"job.yaml:1  the assumed engines\.fast\.kvTokens does not fit"):
        forecast(Options(manifest(tmp_path, long), trace=file, seeds=1))


def test_a_trace_of_other_prompts_is_refused(tmp_path: Path) -> None:
    file = trace(tmp_path, [[10, 20], [5, 64]])
    rows = [{"prompt": text, "answer": text} for text in ("ab", "ba", "aa", "bb")]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"training.data": {"jsonl": {"path": "prompts.jsonl"}, "maxPromptTokens": 8}}
    job_file = manifest(tmp_path, own)
    data = fingerprint(read(job_file).job, tmp_path)
    assert data is not None
    header = msgspec.json.decode(file.read_bytes().splitlines()[0])
    for content, message in (
        (data.content, None),
        ("abcd", "was recorded by another job: with 4 rows of .*prompts.jsonl, and the 4 rows of"),
    ):
        recorded_data = msgspec.to_builtins(msgspec.structs.replace(data, content=content, order="in order"))
        first = msgspec.json.encode({**header, "data": recorded_data})
        other = tmp_path / "other.jsonl"
        other.write_bytes(b"\n".join([first, *file.read_bytes().splitlines()[1:]]))
        if message is None:
            assert "lengths recorded" in forecast(Options(job_file, trace=other, seeds=1))
        else:
            with pytest.raises(LengthTraceError, match=message):
                forecast(Options(job_file, trace=other, seeds=1))


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD)
def test_every_valid_job_can_be_simulated(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job(changes)))
    assert "* the job's" in forecast(Options(file, steps=2, seeds=1))


def _of_data(folder: Path, data: dict[str, Any]) -> Path:
    """A trace whose header says that it is of these data."""
    file = trace(folder, [[5, 6]] * 12)
    header, *rest = file.read_bytes().splitlines(keepends=True)
    first = msgspec.json.encode({**msgspec.json.decode(header), "data": data})
    file.write_bytes(first + b"\n" + b"".join(rest))
    return file


def test_lengths_of_other_generated_prompts_are_refused(tmp_path: Path) -> None:
    parsed = read(job_file := manifest(tmp_path))
    data = fingerprint(parsed.job, parsed.folder)
    assert data is not None
    ours = msgspec.to_builtins(data)
    assert "Recorded prompts" not in forecast(Options(job_file, trace=_of_data(tmp_path, ours), seeds=1))
    with pytest.raises(LengthTraceError, match="have other prompts or answers"):
        forecast(Options(job_file, trace=_of_data(tmp_path, {**ours, "content": "other"}), seeds=1))


def test_lengths_of_prompts_that_are_not_compared_are_said_to_be(tmp_path: Path) -> None:
    remote = {"huggingFace": {"name": "nobody/nothing"}, "maxPromptTokens": 8}
    file = manifest(tmp_path, {"training.data": remote})
    of = {"source": "nobody/nothing", "rows": 7, "content": "c", "used": "", "order": "in order"}
    assert "Recorded prompts: 7 rows of nobody/nothing. They were not compared" in forecast(
        Options(file, trace=_of_data(tmp_path, of), seeds=1)
    )
