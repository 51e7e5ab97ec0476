"""`rljob simulate` on manifests: what it prints, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from rljob_api import RLJob
from rljob_runtime.data.length_trace import LengthTraceError, ResponseLine, TraceHeader, read_length_trace
from rljob_runtime.manifest.checks import fingerprint
from rljob_runtime.manifest.load import ManifestError, read
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.compare import best_sizes, compare, own_policy, policies
from rljob_runtime.simulate.site import Site, Sizes
from rljob_runtime.trace.forecast.simulate import Options, forecast
from rljob_runtime.trace.forecast.text import timeline
from rljob_runtime.trace.forecast.workloads import drawn, recorded
from tests.support.jobs import job
from tests.support.valid_jobs import GOOD

SMALL: dict[str, Any] = {
    "training.rollout": {"maxResponseTokens": 64, "samplesPerPrompt": 2, "maxRunningRequests": 8},
    "training.data": {"generated": {"task": "copy"}, "maxPromptTokens": 8},
    "pools.fastRollout.replicas": 2,
    "pools.heavyRollout.replicas": 1,
}

QUICK = {
    "trainer": {"secondsPerStep": 0.1, "secondsPerToken": 1e-6},
    "lengths": {"betweenPrompts": 1.0},
    "weightSyncSeconds": 0.1,
}
"""Assumptions with which a step takes about as long as its responses do."""


def manifest(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job(SMALL | (changes or {}))))
    return file


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


def site(changes: dict[str, Any] | None = None, steps: int = 3) -> Site:
    return Site(RLJob.model_validate(job(SMALL | (changes or {}))).spec, Assumptions(), steps)


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


def test_sizes_are_found_for_a_number_of_accelerators(tmp_path: Path) -> None:
    text = forecast(Options(manifest(tmp_path), size=6, seeds=1))
    assert text.startswith("Workers of each pool with 6 accelerators, the fastest first, of ")
    assert " sizes that were tried:\ntrainer  fast  heavy  samples/s" in text
    assert "\n1 * " in text and text.count(" *") == 1 and "\n* the job's\n" in text
    assert "The job has 1 trainer, 2 fast and 1 heavy workers: 4 accelerators." in text
    with pytest.raises(ManifestError, match="1 accelerator is too few for one trainer worker and one engine"):
        forecast(Options(manifest(tmp_path), size=1, seeds=1))
    assert "the job's" not in forecast(Options(manifest(tmp_path), size=3, seeds=1)).split("\n\n")[0]


def test_no_size_has_more_accelerators_than_there_are() -> None:
    where = site({"accelerator": "nvidia", "pools.heavyRollout.acceleratorsPerWorker": 2})
    found = best_sizes(where, drawn, [0], 9).fastest
    assert any(each.sizes.heavy for each in found)
    for each in found:
        assert each.sizes.accelerators(where.spec) <= 9
        assert each.sizes.trainer >= 1 and each.sizes.fast + each.sizes.heavy >= 1
    assert found == sorted(found, key=lambda each: -each.samples_per_second)


@pytest.mark.parametrize(
    ("heavy", "own", "assumed"),
    [
        (4, (4, 0, 2), {}),
        (4, (1, 2, 1), QUICK),
        (2, (6, 0, 3), {}),
        (4, (1, 2, 1), {**QUICK, "engines": {"heavy": {"fixedSeconds": 0.004, "secondsPerRequest": 1e-4}}}),
    ],
    ids=["no fast pool", "a quick trainer", "two accelerators a worker", "both pools"],
)
def test_no_sizes_are_much_faster_than_those_that_are_found(
    heavy: int, own: tuple[int, int, int], assumed: dict[str, Any]
) -> None:
    """With 12 accelerators, beside all sizes that have no accelerator left, or no fast pool."""
    where = site(
        {
            "accelerator": "nvidia",
            "training.schedule.promptsPerBatch": 16,
            "pools.trainer.replicas": own[0],
            "pools.fastRollout.replicas": own[1],
            "pools.heavyRollout": {"replicas": own[2], "acceleratorsPerWorker": heavy},
        },
        steps=4,
    )
    where = replace(where, assumptions=Assumptions.model_validate(assumed))

    def rate(sizes: Sizes) -> float:
        sized = replace(where, spec=sizes.applied(where.spec))
        return sized.run(drawn(sized, 0)).samples_per_second

    found = best_sizes(where, drawn, [0], 12)
    splits = [(trainer, count) for trainer in range(1, 12) for count in range((12 - trainer) // heavy + 1)]
    known = {
        Sizes(trainer, fast, count)
        for trainer, count in splits
        for fast in {12 - trainer - heavy * count, 0}
        if fast + count
    }
    best = max(map(rate, known))
    assert found.fastest[0].samples_per_second >= max(0.98 * best, rate(Sizes(*own)))
    assert Sizes(*own) in {each.sizes for each in found.fastest}
    assert found.tried <= 48


def test_of_sizes_that_are_equally_fast_the_first_has_the_fewest_heavy_workers() -> None:
    """Engines of both pools are alike."""
    found = best_sizes(site({"accelerator": "nvidia"}), drawn, [0], 8).fastest
    ties = [each.sizes for each in found if each.samples_per_second == found[0].samples_per_second]
    assert len(ties) > 1 and ties == sorted(ties, key=lambda sizes: sizes.heavy)


def test_no_trainer_has_ranks_without_samples() -> None:
    """An update has 4 samples, and training is what takes long."""
    where = site({"training.schedule.promptsPerBatch": 2})
    slow = Assumptions.model_validate({"trainer": {"secondsPerToken": 1.0}, "weightSyncSeconds": 0.0})
    found = best_sizes(replace(where, assumptions=slow), drawn, [0], 40).fastest
    assert found[0].sizes.trainer == max(each.sizes.trainer for each in found) == 4


@pytest.mark.parametrize(
    ("changes", "size", "trainers"),
    [
        ({"training.parallel": {"tensorParallel": 2}, "pools.trainer.replicas": 2}, 8, {2, 4, 6}),
        ({"training.parallel": {"shardGroupSize": 3}, "pools.trainer.replicas": 3}, 8, {3, 6}),
        ({"training.parallel": {"maxTokensPerMicroBatch": 20}, "pools.trainer.replicas": 4}, 8, {4, 5, 6, 7}),
        ({"training.rollout": SMALL["training.rollout"] | {"routing": {"probe": {}}}}, 6, {1, 2, 3, 4}),
    ],
    ids=["tensor groups", "shard groups", "samples that ranks share", "both pools needed"],
)
def test_only_sizes_are_tried_that_the_job_may_have(
    changes: dict[str, Any], size: int, trainers: set[int]
) -> None:
    changes = {"accelerator": "nvidia", "training.schedule.promptsPerBatch": 8, **changes}
    where = site(changes)
    found = best_sizes(where, drawn, [0], size).fastest
    assert found and {each.sizes.trainer for each in found} <= trainers
    for each in found:
        pools = {
            "pools.trainer.replicas": each.sizes.trainer,
            "pools.fastRollout.replicas": each.sizes.fast,
            "pools.heavyRollout.replicas": each.sizes.heavy,
        }
        # Refused otherwise, as `rljob validate` and the API server would.
        site({**changes, **pools})


def test_a_size_with_which_no_pools_fit_the_job_says_why(tmp_path: Path) -> None:
    wide = {"training.parallel": {"tensorParallel": 4}, "pools.trainer.replicas": 4}
    with pytest.raises(ManifestError, match=r"no pools of 4 accelerators fit .*tensorParallel must divide"):
        forecast(Options(manifest(tmp_path, wide | {"accelerator": "nvidia"}), size=4, seeds=1))


@pytest.mark.parametrize("size", [12289, 100_000])
def test_more_accelerators_than_pools_may_have_are_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(ManifestError, match=f"{size} accelerators are more than a job may have: 12288, with"):
        forecast(Options(manifest(tmp_path, {"accelerator": "nvidia"}), size=size, seeds=1))


def test_a_slow_trainer_gets_more_workers() -> None:
    def best(per_token: float) -> Sizes:
        assumed = Assumptions.model_validate(
            {"trainer": {"secondsPerStep": 0, "secondsPerToken": per_token}, "weightSyncSeconds": 0}
        )
        return best_sizes(replace(site(), assumptions=assumed), drawn, [0], 8).fastest[0].sizes

    assert best(1.0).trainer > best(1e-6).trainer == 1


@pytest.mark.parametrize(
    ("changes", "probe"),
    [
        pytest.param({}, True, id="two pools"),
        pytest.param({"pools.heavyRollout.replicas": 0}, False, id="one pool"),
        pytest.param({"training.rollout.samplesPerPrompt": 1}, False, id="no response beside its probe"),
        pytest.param({"training.schedule.promptsPerBatch": 4}, False, id="a fifth of the prompts is none"),
    ],
)
def test_policies_are_compared_that_the_job_may_have(changes: dict[str, Any], probe: bool) -> None:
    found = policies(site({"training.schedule.promptsPerBatch": 5} | changes).spec)
    assert found == ["adjacent", "interleaved", "leastInFlight", *["probe"] * probe, "adaptive"]


def test_each_policy_gets_the_same_work() -> None:
    found = compare(site(), drawn, [1, 2], ["adjacent", "leastInFlight"])
    assert [each.policy for each in found] == ["adjacent", "leastInFlight"]
    assert len({tuple(outcome.tokens for outcome in each.outcomes) for each in found}) == 1
    assert found[0].spread(lambda outcome: outcome.wall).deviation > 0


def test_the_own_policy_is_the_one_that_the_job_would_run() -> None:
    assert own_policy(site({"training.rollout.routing": {"probe": {"heavyShare": 0.5}}}).spec) == "probe"
    single = {"pools.fastRollout.replicas": 1, "pools.heavyRollout.replicas": 0}
    assert own_policy(site(single).spec) == "adaptive"


def test_heavy_engines_on_more_accelerators_are_faster() -> None:
    where = site({"accelerator": "nvidia", "pools.heavyRollout.acceleratorsPerWorker": 4})
    fast, _, heavy = where.shapes()
    assert heavy.cost.step(8, 1000) == pytest.approx(fast.cost.step(8, 1000) / 4**0.7)
    assert heavy.kv_tokens == 4 * (fast.kv_tokens or 0)


def test_a_timeline_has_a_line_for_each_engine() -> None:
    [first] = compare(site(), drawn, [0], ["adjacent"])
    outcome = replace(
        first.outcomes[0], wall=64.0, lines=([(0.0, 8), (32.0, 1), (48.0, 0)], [(0.0, 0)], [(63.5, 4)])
    )
    lines = timeline(outcome, ["fast", "fast", "heavy"], [8, 8, 8]).split("\n")
    assert lines[0] == f"    fast-0 │{'█' * 32}{'░' * 16}{' ' * 16}│"
    assert lines[1] == f"    fast-1 │{' ' * 64}│"
    assert lines[2] == f"   heavy-0 │{' ' * 63}▒│"
    assert lines[3].split() == ["0", "s", "64", "s"]


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
