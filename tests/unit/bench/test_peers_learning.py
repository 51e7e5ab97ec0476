"""What of the comparison of learning is decided without a GPU: when a reward is reached, how far two curves
are apart, the reward, what verl's console tells, and that both are given the same task."""

import argparse
import re
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api import RLJob
from rljob_runtime.rewards import RewardInput
from tests.bench.peers import copy_reward, learning, ours, peer, verl
from tests.bench.peers.copy_task import COPY, LENGTH, tokenizer
from tests.bench.peers.curves import Point, Reached, distance, reached, smoothed, verl_point
from tests.bench.peers.learning_figures import Run, figures, noise, table

LINE = (
    "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m step:3 - actor/pg_loss:-1.5e-05 - actor/lr:0.002"
    " - critic/score/mean:0.4140625 - critic/score/max:1.0 - response_length/mean:7.5"
)


def curve(*rewards: float, first: float = 60, each: float = 2) -> list[Point]:
    """Steps of `each` seconds, of which the first ends after `first`."""
    return [Point(first + each * number, reward) for number, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("line", "point"),
    [
        (LINE, Point(9.0, 0.4140625)),
        ("step:3 - val-core/bench/reward/mean@1:0.5", None),
        ("step:0 - val-aux/critic/score/mean:0.5", None),
        ("(TaskRunnerV1 pid=7) Training Progress: 10%", None),
        ("", None),
    ],
)
def test_rewards_are_read_from_the_console_of_verl(line: str, point: Point | None):
    assert verl_point(line, 9.0) == point


def test_what_verl_says_is_read_as_it_comes_and_kept_until_no_more_is_wanted(tmp_path: Path):
    program = f"import time; print({LINE!r}, flush=True); time.sleep(600)"
    log, began = tmp_path / "log", time.monotonic()
    with closing(peer.said([sys.executable, "-c", program], {}, log, 60)) as lines:
        now, line = next(lines)
        found = verl_point(line, now)
    assert found == Point(now, 0.4140625) and 0 < now <= time.monotonic() - began < 30
    assert LINE in log.read_text()


def test_a_curve_is_smoothed_by_its_last_five_steps():
    assert smoothed(curve(0, 1, 0, 1, 0.5, 1, 1)) == pytest.approx([0, 0.5, 1 / 3, 0.5, 0.5, 0.7, 0.7])
    assert smoothed([]) == []


@pytest.mark.parametrize(
    ("rewards", "level", "expected"),
    [
        # The mean of five steps is 0.5 at the seventh, 12 s after the first one.
        ([0, 0, 0, 0.25, 0.5, 0.75, 1, 1], 0.5, Reached(7, 12, 72)),
        ([0, 0, 0, 0.25, 0.5, 0.75, 1, 1], 0.9, None),
        # A single step says nothing, nor do fewer than five.
        ([0, 0, 0, 1, 0, 0, 0, 0], 0.5, None),
        ([1, 1, 1, 1], 0.5, None),
        ([1, 1, 1, 1, 1], 0.5, Reached(5, 8, 68)),
        ([], 0.5, None),
    ],
)
def test_a_reward_is_reached_by_the_mean_of_five_steps(
    rewards: list[float], level: float, expected: Reached | None
):
    assert reached(curve(*rewards), level) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0], 0.2),
        # Time makes no difference, nor which of them is longer, nor the first steps.
        ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0.5, 1, 1, 1], 0.1),
        ([1, 0, 0, 0, 0], [0, 0, 0, 0, 1], 0),
        ([0, 0, 0, 0], [1, 1, 1, 1], None),
    ],
)
def test_curves_are_compared_after_as_many_steps(
    one: list[float], other: list[float], expected: float | None
):
    found = distance(curve(*one), curve(*other, first=200, each=5))
    assert found == (None if expected is None else pytest.approx(expected))
    assert distance(curve(*other), curve(*one)) == found


@pytest.mark.parametrize(
    ("response", "expected"),
    [("abca", 1), ("abc", 0.75), ("xbca", 0.75), ("abcaaa", 0.96), ("", 0), ("bcab", 0)],
)
def test_both_get_the_same_reward(response: str, expected: float):
    assert copy_reward.verl_score("bench", response, "abca", extra_info={}) == pytest.approx(expected)
    none: Any = None
    given = RewardInput("<bos>abca<sep>", response, "abca", none, none, True)
    assert copy_reward.ours(given) == pytest.approx(expected)


def test_every_token_of_the_model_is_one_of_the_tokenizer():
    made = tokenizer()
    asked = [{"role": "user", "content": "abca"}]
    text = made.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    tokens = made.encode(text, add_special_tokens=False)
    assert made.convert_ids_to_tokens(tokens) == ["<bos>", "a", "b", "c", "a", "<sep>"]
    assert len(made) == 16
    # What verl asks of a tokenizer of Qwen's family.
    assert len(made.encode("\n", add_special_tokens=False)) == 1
    assert made.convert_tokens_to_ids("<|im_end|>") == made.eos_token_id
    assert made.decode([*tokens, made.eos_token_id], skip_special_tokens=True) == "abca"


def test_prompts_are_the_same_each_time_and_enough_for_all_steps():
    texts = COPY.texts()
    assert texts == COPY.texts() and len(texts) > COPY.prompts * COPY.steps
    assert {len(text) for text in texts} == {LENGTH}
    assert set("".join(texts)) == set("abcdefgh")


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_ours_and_verl_are_given_the_same(gpus: int):
    job = RLJob.model_validate(learning.manifest(ours.Ours(1), COPY, Path("/work"), gpus, 3)).spec.training
    assert job.seed == 3
    given = {**verl.environment(_settings(), COPY, Path("/work")), **learning.variables(COPY)}
    file = peer.HERE / "verl_learning.yaml"
    common = (peer.HERE / "verl_common.yaml").read_text()
    assert set(re.findall(r"oc\.env:(\w+)", file.read_text() + common)) <= given.keys()
    read = yaml.safe_load(file.read_text())
    actor, clip = read["actor_rollout_ref"]["actor"], job.algorithm.policy_loss.clip
    assert clip is not None and clip.dual == actor["clip_ratio_c"]
    assert job.algorithm.aggregation == actor["loss_agg_mode"] and job.algorithm.normalize_by_std
    assert (job.algorithm.kl, job.algorithm.entropy_coefficient) == (None, 0)
    optim, ours_is = actor["optim"], job.optimizer
    assert (ours_is.weight_decay, ours_is.max_grad_norm) == (optim["weight_decay"], optim["clip_grad"])
    assert (ours_is.schedule, ours_is.warmup_updates) == (
        optim["lr_scheduler_type"],
        optim["lr_warmup_steps"],
    )
    assert (
        ours_is.beta1 == optim["betas"][0] and job.data.max_prompt_tokens == read["data"]["max_prompt_length"]
    )
    for name, value in (
        ("LEARNING_RATE", ours_is.learning_rate), ("BETA2", ours_is.beta2), ("CLIP_LOW", clip.low),
        ("CLIP_HIGH", clip.high), ("SAMPLES", job.rollout.samples_per_prompt),
        ("LONGEST", job.rollout.max_response_tokens), ("PROMPTS", job.schedule.prompts_per_batch),
        ("STEPS", job.schedule.total_steps),
    ):  # fmt: skip
        assert float(given[f"PEERS_{name}"]) == value


def _settings() -> peer.Settings:
    return peer.Settings(learning.VERL, 1, 32768, "sdpa")


def test_ours_is_run_with_each_seed_and_verl_once():
    found = learning.runs(["ours-1", "verl_sync"], 2)
    assert found == [Run("ours-1"), Run("ours-1", 1), Run("verl_sync")]
    assert [str(run) for run in found] == ["ours-1", "ours-1 seed 1", "verl_sync"]


def test_curves_that_runs_kept_are_read_as_they_were_written(tmp_path: Path):
    options = argparse.Namespace(out=tmp_path, gpus=1)
    mine = {Run("ours-1"): FAST, Run("ours-1", 1): LOW}
    learning.keep(mine, COPY, options)
    (tmp_path / "curves.json").rename(tmp_path / "mine.json")
    learning.keep({Run("verl_sync"): SLOW}, COPY, options)
    found = learning.kept([tmp_path / "mine.json", tmp_path / "curves.json"])
    assert found == {**mine, Run("verl_sync"): SLOW}


FAST, SLOW = curve(*[0.2] * 5, *[1] * 10), curve(*[0.2] * 6, *[1] * 9, first=100, each=5)
LOW = curve(*[0.2] * 15)


def test_figures_stand_beside_verl_and_beside_noise():
    curves = {Run("ours-1"): FAST, Run("ours-1", 1): LOW, Run("verl_sync"): SLOW}
    found = {figure.name: figure for figure in figures(curves, 10, 1)}
    samples = found["ours-1, 1 GPU: samples to reward 0.5"]
    assert (samples.value, samples.baseline) == (70, 80)
    seconds = found["ours-1, 1 GPU: from the end of the first step to reward 0.9"]
    assert (seconds.value, seconds.baseline) == (18, 50)
    assert found["ours-1, 1 GPU: from the start of the command to reward 0.9"].value == 78
    assert found["verl_sync, 1 GPU: samples to reward 0.5"].baseline is None
    assert found["ours-1, 1 GPU: reward at the end"].baseline == 1
    # A level that was not reached has no figure.
    assert "ours-1 seed 1, 1 GPU: samples to reward 0.5" not in found
    apart = found["ours-1 beside verl_sync, 1 GPU: largest distance after as many samples"]
    assert apart.value == pytest.approx(0.16) and apart.baseline == pytest.approx(0.8)
    assert noise(curves, "ours-1") == pytest.approx(0.8)


def test_the_end_of_a_run_that_had_less_time_is_no_baseline():
    found = {
        figure.name: figure for figure in figures({Run("ours-1"): FAST, Run("verl_sync"): SLOW[:6]}, 10, 1)
    }
    assert found["ours-1, 1 GPU: reward at the end"].baseline is None
    assert found["ours-1, 1 GPU: samples to reward 0.25"].baseline is None


def test_figures_of_one_contender_have_no_baseline():
    found = figures({Run("ours-1"): FAST}, 10, 0)
    assert len(found) == 10 and {figure.baseline for figure in found} == {None}


def test_the_table_names_what_was_not_reached():
    [_, fast, low] = table({Run("ours-1"): FAST, Run("ours-1", 1): LOW}, 10).splitlines()
    assert fast.split() == [
        "ours-1", "60", "10.0", "70.0", "70", "12.0", "72.0", "100", "18.0", "78.0", "15", "1.000",
    ]  # fmt: skip
    assert low.split() == ["ours-1", "seed", "1", *"---------", "15", "0.200"]
