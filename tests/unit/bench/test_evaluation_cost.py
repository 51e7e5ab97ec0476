"""What evaluations cost training, on jobs small enough for a test."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rljob_runtime.trace.record.event_log import Event
from tests.bench.evaluation_cost import COMPUTE_BOUND, Case, HeldOut, cost
from tests.support.simulated.simulated_job import Scenario, SimulatedJob


def test_training_is_slowed_by_no_more_than_the_evaluations_tokens() -> None:
    found = cost(
        Case(every=5, prompts=16, timing=COMPUTE_BOUND, train_seconds=5, first=5, counted=5, groups=4)
    )
    assert found.own > 0.05
    assert -0.02 <= found.slower <= found.own + 0.02


def test_the_time_that_training_waits_for_one_is_recorded(tmp_path: Path) -> None:
    # A response of an evaluation takes 100 steps of its engine, 1 s; others 0.1 s. A step trains for 0.4 s.
    job = SimulatedJob(
        Scenario(
            steps=4, train_seconds=0.4,
            length_of=lambda request: 100 if request.request_id.startswith("-") else 10,
            evaluating=lambda job: HeldOut(job, Case(every=2, prompts=3)),
        ),
        events_folder=tmp_path,
    ).run()  # fmt: skip
    waits = [event for event in _events(tmp_path) if event.event == "evaluation_wait"]
    # Of the initial weights until the first step's are published, after two steps, and at the end.
    assert [event.step for event in waits] == [1, 3, 4]
    began = job.steps[0].ended
    assert waits[0].start == pytest.approx(began)
    assert [event.duration for event in waits] == pytest.approx([1 - began, 0.6, 1.0], abs=0.1)


def _events(folder: Path) -> Iterator[Event]:
    for file in sorted(folder.glob("step_*/*.jsonl")):
        yield from map(msgspec.json.Decoder(Event).decode, file.read_bytes().splitlines())
