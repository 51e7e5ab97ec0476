"""What of the comparison with another trainer is decided without a GPU: the work, the rates, and that every
contender is given all that it reads."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from rljob_api import RLJob
from tests.bench.peers import ours, peer, verl
from tests.bench.peers.__main__ import figures
from tests.bench.peers.rates import Ended, steady_rate, verl_step
from tests.bench.peers.work import LARGE, SAMPLES, SMALL

STEP = (
    "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m step:3 - actor/loss:-1.5e-05 - response_length/mean:20.5"
    " - response_length/max:32.0 - perf/time_per_step:2.5"
)


@pytest.mark.parametrize(
    ("line", "ended"),
    [
        (STEP, Ended(9.0, 20.5 * 32)),
        ("step:3 - val-core/bench/reward/mean@1:0.5", None),
        ("(TaskRunnerV1 pid=7) Training Progress: 10%", None),
        ("", None),
    ],
)
def test_steps_are_read_from_the_console_of_verl(line: str, ended: Ended | None):
    assert verl_step(line, 9.0, 32) == ended


@pytest.mark.parametrize(
    ("steps", "fewest", "rate"),
    [
        # 100 tokens a step, one step in 2 s, after a first one that took a minute.
        ([Ended(60 + 2 * at, 100) for at in range(5)], 3, 50),
        ([Ended(60 + 2 * at, 100) for at in range(5)], 5, None),
        ([Ended(60, 100)], 1, None),
        ([], 1, None),
    ],
)
def test_a_rate_is_of_steps_after_the_first_ones(steps: list[Ended], fewest: int, rate: float | None):
    assert steady_rate(steps, 1, fewest) == rate


def test_the_work_is_the_same_each_time_and_within_its_limits():
    lengths = LARGE.lengths()
    assert (lengths == LARGE.lengths()).all() and lengths.shape == (LARGE.rows, SAMPLES)
    assert lengths.min() >= 16 and lengths.max() == LARGE.longest
    assert np.median(lengths) == pytest.approx(220, rel=0.05)
    texts = SMALL.texts()
    assert len(set(texts)) == SMALL.rows
    assert all(8 < len(text.split()) <= 16 for text in texts)


@pytest.mark.parametrize("gpus", [0, 1, 2, 4])
def test_ours_is_a_valid_job(gpus: int):
    job = RLJob.model_validate(ours.manifest(ours.Ours(1), LARGE, Path("/work"), gpus, 32768))
    assert job.spec.training.schedule.total_steps == LARGE.steps
    assert job.spec.pools.fast_rollout.replicas == max(1, gpus - 1)


@pytest.mark.parametrize(
    ("name", "ours_is"),
    [
        ("ours-2", ours.Ours(2)),
        ("ours-0x3", ours.Ours(0, 3)),
        ("ours-1-shared", ours.Ours(1, shared=True)),
        ("ours-1x2-shared", ours.Ours(1, 2, shared=True)),
        ("ours", None),
        ("verl_sync", None),
    ],
)
def test_a_name_says_what_differs(name: str, ours_is: ours.Ours | None):
    assert ours.named(name) == ours_is


def test_all_gpus_generate_where_the_trainer_shares_its_own():
    job = RLJob.model_validate(ours.manifest(ours.Ours(1, shared=True), LARGE, Path("/work"), 4, 32768))
    assert job.spec.pools.fast_rollout.replicas == 4
    assert job.spec.training.async_.weight_sync.transport == "auto"


@pytest.mark.parametrize("mode", verl.MODULES)
def test_the_settings_of_verl_read_nothing_that_is_not_given(mode: str):
    settings = peer.Settings(mode, 4, 32768, "sdpa")
    given = verl.environment(settings, LARGE, Path("/work"))
    files = [peer.HERE / f"{name}.yaml" for name in (mode, "verl_common")]
    read = {name for file in files for name in re.findall(r"oc\.env:(\w+)", file.read_text())}
    assert read <= given.keys()
    assert given["PEERS_TRAINERS"] == given["PEERS_ENGINES"] == "2"
    assert all(yaml.safe_load(file.read_text()) for file in files)


def test_each_of_ours_stands_beside_each_verl():
    found = figures({"ours-1": 30_000.0, "verl_sync": 10_000.0}, 1)
    [alone, peer, beside] = found
    assert (alone.baseline, peer.baseline) == (None, None)
    assert (beside.ratio, beside.goal) == (3, ">= 2.5 x")
    assert [figure.name for figure in figures({"ours-1": 1.0}, 0)] == ["ours-1, CPU: response tokens trained"]
