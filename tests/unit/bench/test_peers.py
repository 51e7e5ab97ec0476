"""What of the comparison with another trainer is decided without a GPU: the work, the rates, and that every
contender is given all that it reads."""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from rljob_api import RLJob
from rljob_runtime.routing.gears import capture_sizes
from tests.bench.peers import ours, peer, ranks, trl, verl
from tests.bench.peers.__main__ import asked, figures, needed, theirs
from tests.bench.peers.forced import told
from tests.bench.peers.rates import Ended, steady_rate, trl_line, trl_step, verl_step
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
    ("line", "ended"),
    [
        (trl_line(3, 656.0), Ended(9.0, 656)),
        (f"another's unfinished line{trl_line(3, 156040.5)}\n", Ended(9.0, 156040.5)),
        ("{'loss': '0', 'completions/mean_length': '20.5'}", None),
        ("", None),
    ],
)
def test_steps_are_read_from_what_is_said_inside_trl(line: str, ended: Ended | None):
    assert trl_step(line, 9.0) == ended


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


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [
        ([0, 0, 1, 1], [10, 11, 20, 21]),
        ([1, 0, 0, 1], [20, 10, 11, 21]),
        ([], []),
    ],
)
def test_each_response_has_the_length_that_its_row_tells_for_its_number(rows: list[int], tokens: list[int]):
    assert told(rows, np.array([[10, 11], [20, 21]])) == tokens


def test_no_more_lengths_are_told_than_a_prompt_has_responses():
    with pytest.raises(IndexError):
        told([0, 0, 0], np.array([[10, 11], [20, 21]]))


@pytest.mark.parametrize("gpus", [0, 1, 2, 4])
def test_ours_is_a_valid_job(gpus: int):
    job = RLJob.model_validate(ours.manifest(ours.Ours(1), LARGE, Path("/work"), gpus, 32768))
    assert job.spec.training.schedule.total_steps == LARGE.steps
    assert job.spec.pools.fast_rollout.replicas == max(1, gpus - 1)


def test_what_is_tried_of_the_engine_is_in_the_job():
    job = ours.manifest(ours.Ours(1, delayed=True, graphs=18), LARGE, Path("/work"), 2, 32768)
    engine = RLJob.model_validate(job).spec.training.rollout.engine.vllm
    assert engine is not None and engine.delay_prefills
    assert engine.capture_sizes == [*range(1, 17), 18]


@pytest.mark.parametrize(
    ("name", "ours_is"),
    [
        ("ours-2", ours.Ours(2)),
        ("ours-0x3", ours.Ours(0, 3)),
        ("ours-1-shared", ours.Ours(1, shared=True)),
        ("ours-1x2-shared", ours.Ours(1, 2, shared=True)),
        ("ours-1-delayed", ours.Ours(1, delayed=True)),
        ("ours-2-shared-delayed-graphs512", ours.Ours(2, 1, True, True, 512)),
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


def test_verl_captures_the_graphs_that_ours_does():
    settings = yaml.safe_load((peer.HERE / "verl_common.yaml").read_text())
    rollout = settings["actor_rollout_ref"]["rollout"]
    assert rollout["cudagraph_capture_sizes"] == list(capture_sizes(rollout["max_num_seqs"]))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("verl_sync", ("verl_sync", 1.0)),
        ("verl_async-0.5-again", ("verl_async", 0.5)),
        ("trl_sync", ("trl_sync", 0.0)),
        ("trl_async-again", ("trl_async", 0.0)),
    ],
)
def test_a_peer_is_known_by_its_name(name: str, mode: tuple[str, float]):
    assert theirs(name) == mode


@pytest.mark.parametrize(
    ("gpus", "mine", "others"),
    [
        (0, {ours.Ours(1)}, set()),
        (1, {ours.Ours(0), ours.Ours(1)}, {("verl_sync", 1.0)}),
        *(
            (
                gpus,
                {ours.Ours(bound, shared=shared) for bound in (1, 2) for shared in (False, True)},
                {("verl_async", 0.5), ("verl_async", 1.0), ("verl_sync", 1.0)},
            )
            for gpus in (2, 4)
        ),
    ],
)
def test_where_nobody_is_named_all_are_compared_that_can_run(
    gpus: int, mine: set[ours.Ours], others: set[tuple[str, float]]
):
    names = asked(gpus)
    peers = [name for name in names if ours.named(name) is None]
    assert {ours.named(name) for name in names} - {None} == mine
    assert {theirs(name) for name in peers} == others
    for mode, staleness in others:
        verl.check(peer.Settings(mode, gpus, 32768, "sdpa", staleness), None)
    assert needed(names) == 240 * len(mine) + 650 * len(others)


@pytest.mark.parametrize("built", [True, False])
def test_kernels_are_offered_where_flash_attn_has_none(monkeypatch: pytest.MonkeyPatch, built: bool):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setattr(peer, "find_spec", lambda name: built or None)
    peer.offer_kernels()
    added = os.environ["PYTHONPATH"].split(os.pathsep)[1:]
    assert [(Path(folder) / "flash_attn_2_cuda.py").exists() for folder in added] == [True] * (not built)


def test_how_flash_attn_is_installed_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(peer, "is_flash_attn_2_available", lambda: False)
    peer.check_attention(argparse.ArgumentParser(), "sdpa")
    with pytest.raises(SystemExit):
        peer.check_attention(argparse.ArgumentParser(), "flash_attention_2")
    assert "FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE pip install" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["trl_sync-1", "trl", "verl_sync-1"])
def test_another_name_is_refused_with_those_that_are_known(name: str):
    with pytest.raises(ValueError, match="trl_sync, trl_async; each with -again"):
        theirs(name)


def trl_settings(
    mode: str, gpus: int, micro_batch: int = 32768, attention: str = "flash_attention_2"
) -> peer.Settings:
    return peer.Settings(mode, gpus, micro_batch, attention)


@pytest.mark.parametrize(
    ("settings", "batch"),
    [
        # 192 + 1,024 tokens are the widest: 26 fit into 32,768, and 16 are a divisor of all.
        (trl_settings("trl_sync", 1), trl.Batch(16, 32)),
        (trl_settings("trl_sync", 2), trl.Batch(16, 16)),
        (trl_settings("trl_sync", 4, 16384), trl.Batch(8, 16)),
        (trl_settings("trl_sync", 1, 100), trl.Batch(1, 512)),
        (trl_settings("trl_sync", 1, 10**9), trl.Batch(512, 1)),
        (trl_settings("trl_sync", 0), trl.Batch(16, 32)),
        # A mean response has 308 tokens, and one GPU trains.
        (trl_settings("trl_async", 2), trl.Batch(64, 8)),
        (trl_settings("trl_async", 2, 16384), trl.Batch(32, 16)),
    ],
)
def test_a_pass_of_trl_has_the_responses_that_its_tokens_hold(settings: peer.Settings, batch: trl.Batch):
    assert trl.batch(settings, LARGE) == batch


@pytest.mark.parametrize(
    ("gpus", "trl_installed", "said"),
    [
        (1, None, "needs two GPUs"),
        (2, "1.16.0", "does not start beside trl 1.16.0"),
    ],
)
def test_verl_is_refused_where_it_cannot_run(gpus: int, trl_installed: str | None, said: str):
    with pytest.raises(ValueError, match=said):
        verl.check(peer.Settings("verl_async", gpus, 16384, "sdpa", 1.0), trl_installed)


@pytest.mark.parametrize("trl_installed", [None, "0.24.0"])
def test_verl_runs_beside_an_older_trl_and_without(trl_installed: str | None):
    verl.check(peer.Settings("verl_async", 2, 16384, "sdpa", 1.0), trl_installed)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (trl_settings("trl_sync", 3), "64 of a step cannot be shared by 3"),
        (trl_settings("trl_async", 1), "needs two GPUs"),
        (trl_settings("trl_async", 4), "needs two GPUs"),
        (trl_settings("trl_async", 2, attention="sdpa"), "needs --attention flash_attention_2"),
    ],
)
def test_trl_is_refused_where_it_cannot_run(settings: peer.Settings, said: str):
    with pytest.raises(ValueError, match=said):
        trl.check(settings, LARGE)


@pytest.mark.parametrize(
    ("settings", "trainers", "launched"),
    [
        (trl_settings("trl_sync", 0), 1, False),
        (trl_settings("trl_sync", 1), 1, False),
        (trl_settings("trl_sync", 2), 2, True),
        (trl_settings("trl_async", 2), 1, False),
    ],
)
def test_trl_is_given_the_work(settings: peer.Settings, trainers: int, launched: bool):
    trl.check(settings, LARGE)
    arguments = trl.arguments(settings, LARGE, Path("/work"))
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert ("tests.bench.peers.ranks" in trl.command(settings, LARGE, Path("/work"))) == launched
    assert given["--max_steps"] == str(LARGE.steps) and given["--max_completion_length"] == str(LARGE.longest)
    assert int(given["--per_device_train_batch_size"]) * int(given["--gradient_accumulation_steps"]) == (
        LARGE.prompts * SAMPLES // trainers
    )
    assert given["--use_cpu"] == str(settings.gpus == 0)
    kept = yaml.safe_load(Path(given["--config"]).read_text())
    assert kept["num_generations"] == SAMPLES and not {f"--{name}" for name in kept} & given.keys()


@pytest.mark.parametrize(
    ("settings", "visible", "seen", "engine"),
    [
        (trl_settings("trl_sync", 0), None, "", None),
        (trl_settings("trl_sync", 2), None, "0,1", None),
        (trl_settings("trl_sync", 1), "3,5", "3", None),
        (trl_settings("trl_sync", 0), "3,5", "", None),
        (trl_settings("trl_async", 2), None, "0", "1"),
        (trl_settings("trl_async", 2), "3,5,7", "3", "5"),
    ],
)
def test_trl_sees_the_gpus_that_it_is_to_use(
    settings: peer.Settings, visible: str | None, seen: str, engine: str | None,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    given = trl.environment(settings, Path("/work"))
    assert (given["CUDA_VISIBLE_DEVICES"], given.get("PEERS_ENGINE")) == (seen, engine)


def test_a_peer_that_is_not_installed_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        peer.check_installed(argparse.ArgumentParser(), "not_installed_here", "not-installed==1")
    assert "pip install not-installed==1" in capsys.readouterr().err


RANK = """
import os, sys, time
print(os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], flush=True)
if os.environ["RANK"] == sys.argv[1]:
    sys.exit(7)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("fails", "seconds", "code"), [("none", "0", 0), ("1", "60", 7)])
def test_a_rank_that_fails_ends_all(tmp_path: Path, fails: str, seconds: str, code: int):
    (tmp_path / "one_rank.py").write_text(RANK)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, ranks.__file__, "2", "one_rank", fails, seconds], env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code and time.monotonic() - began < 30
    assert sorted(done.stdout.splitlines()) == ["0 0 2", "1 1 2"] or code


def test_each_of_ours_stands_beside_each_peer():
    found = figures({"ours-1": 30_000.0, "verl_sync": 10_000.0}, 1)
    [alone, other, beside] = found
    assert (alone.baseline, other.baseline) == (None, None)
    assert (beside.ratio, beside.goal) == (3, ">= 2.5 x")
    [*_, beside] = figures({"ours-1": 30_000.0, "trl_sync": 10_000.0}, 1)
    assert (beside.name, beside.ratio, beside.goal) == ("ours-1 beside trl_sync, 1 GPU", 3, None)
    assert [figure.name for figure in figures({"ours-1": 1.0}, 0)] == ["ours-1, CPU: response tokens trained"]
