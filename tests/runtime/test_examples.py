"""The examples in folders: with the model and the data that they make every manifest is valid, and of those
for CPUs two steps are trained, with a model folder that has a tokenizer of its own.
"""

import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rljob_runtime.cli import main
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import build_tokenizer
from rljob_runtime.driver.held_out import held_out_sets
from rljob_runtime.manifest import reward_trial
from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read
from rljob_runtime.trace.analyse.event_files import Tally, read_steps
from rljob_runtime.trace.record.evaluation_log import EVALUATION_SAMPLES_FILE, read_evaluations
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, Event
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from rljob_runtime.trace.record.sample_log import SampleLine, read_samples
from tests.support.runtime.runs import running

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/*.yaml"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples, after the preparations that their pages name."""
    folder = tmp_path_factory.mktemp("user") / "examples"
    shutil.copytree(EXAMPLES, folder)
    for script in sorted(folder.glob("*/prepare.py")):
        command = [sys.executable, script.name]
        done = subprocess.run(
            command, cwd=script.parent, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
    # In place of the downloads that the manifests for GPUs name, which have rows for many steps.
    gsm8k, small = folder / "gsm8k", folder / "gsm8k" / "small"
    (gsm8k / "Qwen3-0.6B").symlink_to(small / "model")
    (folder / "lora" / "Qwen3-8B").symlink_to(small / "model")
    (gsm8k / "gsm8k" / "main").mkdir(parents=True)
    for split, times in (("train", 20), ("test", 1)):
        downloaded = gsm8k / "gsm8k" / "main" / f"{split}-00000-of-00001.parquet"
        pq.write_table(pa.concat_tables([pq.read_table(small / f"{split}.parquet")] * times), downloaded)
    return folder


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_manifest_is_valid(prepared: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside other work it takes seconds to import math-verify.
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)
    document = read(prepared / name)
    assert check(document) == ([], [])
    # What `check` looks at the first rows of, the job's start looks at as a whole.
    training, folder = document.job.spec.training, (prepared / name).parent
    tokenizer = build_tokenizer(training.tokenizer, folder, folder / (training.model.path or "."))
    trained = PromptSource(training.data, tokenizer, training.seed, folder)
    sets = held_out_sets(training, trained, tokenizer, folder)
    assert len(sets) == (len(training.evaluation.sets) if training.evaluation else 0)


def test_the_first_manifest_of_the_page_on_a_job_of_ones_own_is_valid(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (EXAMPLES.parent / "docs" / "own-job.md").read_text()
    (command,) = re.findall(r"^rljob (new .*--output first\.yaml)$", page, re.MULTILINE)
    monkeypatch.chdir(prepared / "own-job")
    monkeypatch.setattr("sys.stdin", None)
    assert main(command.split()) == 0
    errors, _ = check(read(Path("first.yaml")))
    assert errors == []


STEPS = 2
_CLOCK = 0.02
"""Seconds. When a process was made is known to a hundredth."""


def trained(prepared: Path, name: str) -> tuple[Path, list[dict[str, Any]], list[SampleLine]]:
    """The folder of a run of the example's first steps, its metrics and the responses that it kept. `name`:
    the manifest's, in the folder of the examples."""
    document = yaml.safe_load((prepared / name).read_text())
    document["spec"]["training"]["schedule"] |= {"totalSteps": STEPS, "promptsPerBatch": 6}
    short = (prepared / name).with_name("short.yaml")
    short.write_text(yaml.safe_dump(document))
    with running(short) as started:
        assert started.end() == 0, started.log.read_text()
    run = started.folder
    rows = read_metrics(run / METRICS_FILE).rows
    assert [row["step"] for row in rows] == list(range(STEPS))
    # The trainer reads the model and the engine's tokens as the engine does.
    assert all(
        row["failed"] == 0 and row["parity_max"] < 1e-4 for row in rows if row["parity_max"] is not None
    )
    assert rows[0]["parity_max"] is not None
    return run, rows, read_samples(run).rows


def own_job(run: Path, rows: list[dict[str, Any]], said: list[SampleLine]) -> None:
    """A data set that `datasets` saved, no chat template; parts and metrics of a reward of one's own."""
    assert set(rows[0]["reward_parts"]) == {"correct", "brief"} and "words" in rows[0]["reward_metrics"]
    assert all(line.prompt.startswith("<bos> which colour has") for line in said)


def evaluation(run: Path, rows: list[dict[str, Any]], said: list[SampleLine]) -> None:
    """Parquet and JSON Lines, a chat template, sets that have the fields and system prompt of training."""
    found = read_evaluations(run)
    assert [(line.step, sorted(line.sets)) for line in found] == [
        (0, ["other-things", "test"]),
        (STEPS, ["other-things", "test"]),
    ]
    assert all(score.failed == 0 and 0 < score.mean < 1 for score in found[0].sets.values() if score.mean)
    held_out = read_samples(run, EVALUATION_SAMPLES_FILE).rows
    texts = [line.prompt for line in (*said, *held_out)]
    assert all("system\nPut the answer into \\boxed{}.<|im_end|>" in text for text in texts)
    assert any("dogs" in line.prompt for line in held_out if line.evaluation == "other-things")


def own_loss(run: Path, rows: list[dict[str, Any]], said: list[SampleLine]) -> None:
    """Functions in a file beside the manifest, in the processes of trainer and driver."""
    # By place alone: -1 to 1, and 0 where all of a group are alike.
    assert {line.advantage for line in said} - {0.0}
    assert all(-1 <= line.advantage <= 1 for line in said)
    assert all(row["loss"] is not None and row["grad_norm"] > 0 for row in rows)


def gsm8k(run: Path, rows: list[dict[str, Any]], said: list[SampleLine]) -> None:
    """Parquet, a chat template, a built-in reward that compares with an answer, and a test split."""
    assert all("system\nPut the answer into \\boxed{}.<|im_end|>" in line.prompt for line in said)
    assert all(0 <= row["reward_mean"] <= 1 and row["grad_norm"] > 0 for row in rows)
    found = read_evaluations(run)
    assert [(line.step, sorted(line.sets)) for line in found] == [(0, ["test"]), (STEPS, ["test"])]
    assert all(line.sets["test"].failed == 0 for line in found)
    assert (run / "model" / "config.json").is_file()


def check_starts(run: Path) -> None:
    """Each worker's events say where the time of its start went; driver.log and the report do in a line."""
    starts: dict[str, list[Event]] = {}
    for _, found in read_steps(run / EVENTS_FOLDER, Tally()):
        for event in found:
            if event.event == "start":
                assert event.duration > 0
                starts.setdefault(event.worker, []).append(event)
    parts = {
        worker: list(dict.fromkeys(event.extra["part"] for event in sorted(own, key=lambda each: each.start)))
        for worker, own in starts.items()
    }
    # What had ended when a worker was asked for that was begun before is no part of its start.
    early, asked = ["process", "imports", "boot"], ["core", "device", "load", "profile", "graphs"]
    engines = [worker for worker in parts if worker.startswith(("fast", "heavy"))]
    assert engines
    for worker in engines:
        assert parts[worker][-len(asked) :] == asked
        assert set(parts[worker]) <= {*early, *asked}
    assert parts["trainer-0"][-3:] == ["join", "load", "prepare"]
    assert set(parts["trainer-0"][:-3]) <= {"process", "imports"}
    assert parts["driver"] == ["check", "ready", "ray", "model"]
    for worker in engines:
        *before, core, device, load, profile, graphs = sorted(
            (event for event in starts[worker] if event.extra["part"] != "boot"), key=lambda each: each.start
        )
        boot = [event for event in starts[worker] if event.extra["part"] == "boot"]
        inside = [device, load, profile, graphs]
        for own in ([*before, core], [*boot, *inside]):
            for earlier, later in itertools.pairwise(own):
                assert earlier.end <= later.start + _CLOCK, (earlier, later)
        # The core's process imports while its host does.
        assert all(event.start < core.start for event in boot)
        assert core.start <= device.start + _CLOCK and graphs.end <= core.end
        assert 0.05 < sum(event.duration for event in inside) <= core.duration
    (ready,) = [event for event in starts["driver"] if event.extra["part"] == "ready"]
    assert all(event.end <= ready.end for own in starts.values() for event in own)
    words = ready.extra["words"]
    last = r"(engine \S+|trainer-0) was last \([\d.]+ s: (process|imports|boot|core|join|load) [\d.]+"
    assert re.match(rf"ready after [\d.]+ s: {last}", words)
    assert words in (run / "driver.log").read_text()
    assert words[1:] in (run / "report.html").read_text()


def lora(run: Path, rows: list[dict[str, Any]], said: list[SampleLine]) -> None:
    """An adapter, in vLLM's engine, of a model that is a folder."""
    check_starts(run)
    assert all(row["grad_norm"] > 0 for row in rows)
    assert (run / "adapter" / "adapter_model.safetensors").is_file()
    kept = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert (kept["r"], kept["lora_alpha"]) == (16, 32)


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("own-job/job.yaml", own_job),
        ("evaluation/job.yaml", evaluation),
        ("own-loss/job.yaml", own_loss),
        ("gsm8k/small.yaml", gsm8k),
        ("lora/small.yaml", lora),
    ],
)
def test_the_example_trains(prepared: Path, name: str, holds: Any) -> None:
    holds(*trained(prepared, name))
