"""What the status says of busy pools over a run with an interruption, and of evaluations."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_api.loggers import Loggers
from rljob_runtime.data.length_trace import TraceHeader
from rljob_runtime.driver import observer as observer_module
from rljob_runtime.driver.load_watch import TELL_SECONDS
from rljob_runtime.driver.observer import RunObserver
from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.evaluation.scores import GradedResponse, score_set
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.site.own_start import OwnStart
from rljob_runtime.site.status_draft import StatusDraft
from rljob_runtime.trace.record.evaluation_log import EvaluationLine
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trace.record.length_log import LengthLog
from rljob_runtime.trace.record.metrics_log import read_metrics
from rljob_runtime.trace.record.unsent_log import Unsent, read_unsent
from rljob_runtime.view.progress import Progress
from tests.support.runtime.steps import HEADER, step_metrics

NO_EVENTS = EventLog(None, 0, "driver", "driver")


class Shown:
    """A view that keeps what it was shown last."""

    progress: Progress | None = None

    def update(self, progress: Progress) -> None:
        self.progress = progress


def test_no_pool_is_busy_while_the_trainer_is_away_or_all_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(observer_module, "time", SimpleNamespace(time=loop.time, monotonic=loop.time))
        draft, view = StatusDraft(attempt=1), Shown()
        pool = EnginePool(loop.time, lambda slot, why: None)
        slot = EngineSlot(FakeEngine("fast-0", lambda request: 1), "fast", 8, EventLog(None, 1, "fast-0", ""))
        pool.add(slot)
        pool.join(slot)
        algorithm = SimpleNamespace(kl=None, distillation=None)
        inputs: Any = SimpleNamespace(
            settings=SimpleNamespace(total_steps=9, capacity_samples=64),
            options=SimpleNamespace(folder=tmp_path),
            events_folder=None,
            start=OwnStart(),
            job=SimpleNamespace(
                metadata=SimpleNamespace(name="job"),
                spec=SimpleNamespace(training=SimpleNamespace(algorithm=algorithm, loggers=Loggers())),
            ),
            prompts=SimpleNamespace(names=()),
        )
        parts: Any = SimpleNamespace(
            pool=pool, site=SimpleNamespace(draft=draft), spawn=loop.create_task,
            rollouter=SimpleNamespace(counts=GroupCounts(), steps_left=8), says=SimpleNamespace(),
            evaluations=None, curriculum=None, lengths=LengthLog(None, TraceHeader(1, 1)), starts={},
            events=NO_EVENTS,
        )  # fmt: skip
        shown: Any = view
        report: Any = None
        observer = RunObserver(inputs, HEADER, shown, report)
        observer.begins(parts, 0)
        observer.training(0)
        assert "load" not in draft.training
        observer.step_begins([])
        await asyncio.sleep(10)
        observer.step_done(step_metrics(0), [0], 0, 0, 10.0)
        assert draft.training["load"]["summary"] == "100/0/-"
        observer.interrupted("trainer lost", "rank 1 died")
        assert "load" not in draft.training and view.progress is not None and view.progress.busy == {}
        await asyncio.sleep(3 * TELL_SECONDS)
        assert "load" not in draft.training, "told while the trainer was away"
        observer.training(0)
        await asyncio.sleep(2 * TELL_SECONDS)
        assert 0 < draft.training["load"]["windowSeconds"] <= 2 * TELL_SECONDS
        observer.close()
        await asyncio.sleep(2 * TELL_SECONDS)
        assert "load" not in draft.training

    run_virtual(main())


def test_an_evaluation_is_shown_everywhere_and_its_status_again_after_a_resume(tmp_path: Path) -> None:
    score = score_set([[GradedResponse(1.0, 4), GradedResponse(0.0, 4)]], 1.0)
    line = EvaluationLine(step=4, version=2, time=1.0, seconds=1.0, sets={"held_out": score})
    none = score_set([[GradedResponse(None, 4, failure="timeout after 10 s")]], 1.0)
    failed = EvaluationLine(step=4, version=2, time=1.0, seconds=1.0, sets={"held_out": none})

    async def main(newest: EvaluationLine | None, *told: EvaluationLine) -> tuple[StatusDraft, list[str]]:
        loop, draft, said = asyncio.get_running_loop(), StatusDraft(attempt=1), list[str]()
        inputs: Any = SimpleNamespace(
            settings=SimpleNamespace(total_steps=9, capacity_samples=64),
            options=SimpleNamespace(folder=tmp_path),
            events_folder=None,
            start=OwnStart(),
            job=SimpleNamespace(
                metadata=SimpleNamespace(name="job"),
                spec=SimpleNamespace(
                    training=SimpleNamespace(
                        algorithm=SimpleNamespace(kl=None, distillation=None), loggers=Loggers()
                    )
                ),
            ),
        )
        evaluations: Any = SimpleNamespace(newest=newest, on_evaluated=None)
        parts: Any = SimpleNamespace(
            pool=EnginePool(loop.time, lambda slot, why: None), site=SimpleNamespace(draft=draft),
            spawn=loop.create_task, rollouter=SimpleNamespace(counts=GroupCounts(), steps_left=8),
            says=SimpleNamespace(), starts={}, events=NO_EVENTS, evaluations=evaluations,
        )  # fmt: skip
        view: Any = SimpleNamespace(message=said.append, update=lambda progress: None)
        report: Any = None
        observer = RunObserver(inputs, HEADER, view, report)
        observer.begins(parts, 4)
        observer.training(4)
        for each in told:
            evaluations.on_evaluated(each)
        observer.close()
        return draft, said

    shown = {
        "step": 4,
        "version": 2,
        "sets": [{"name": "held_out", "mean": 0.5, "passAt1": 0.5, "passAtK": 1.0}],
        "summary": "0.5",
    }
    draft, said = run_virtual(main(None, line))
    assert draft.training["evaluation"] == shown
    assert said == ["evaluation after step 4: held_out mean 0.5, pass@1 0.5, pass@2 1"]
    draft, said = run_virtual(main(line))
    assert (draft.training["evaluation"], said) == (shown, [])
    records = b"".join(file.read_bytes() for file in sorted((tmp_path / "tensorboard").iterdir()))
    assert records.count(b"evaluation/held_out/pass@2") == 1, "its points are not dropped by the resume"
    _, said = run_virtual(main(None, failed))
    assert said == [
        "evaluation after step 4: held_out no rewards, pass@1 0",
        "evaluation after step 4: the reward failed for 1 of 1 responses of held_out, whose numbers say "
        "nothing of the model; the first failure: timeout after 10 s",
    ]


def test_a_logger_that_takes_nothing_is_told_and_the_report_comes_after_it(tmp_path: Path) -> None:
    # Nobody listens at this port.
    loggers = Loggers.model_validate({"webhook": {"url": "http://127.0.0.1:9/"}, "timeoutSeconds": 30.0})
    said, began = list[str](), list[list[Unsent]]()

    async def main() -> str | None:
        loop, draft = asyncio.get_running_loop(), StatusDraft(attempt=1)
        training = SimpleNamespace(
            algorithm=SimpleNamespace(kl=None, distillation=None), loggers=loggers, adapter=None
        )
        inputs: Any = SimpleNamespace(
            settings=SimpleNamespace(total_steps=9, capacity_samples=64),
            options=SimpleNamespace(folder=tmp_path), checkpoints=tmp_path / "none", events_folder=None,
            start=OwnStart(),
            job=SimpleNamespace(
                metadata=SimpleNamespace(name="job"), spec=SimpleNamespace(training=training)
            ),
            prompts=SimpleNamespace(names=()),
        )  # fmt: skip
        parts: Any = SimpleNamespace(
            pool=EnginePool(loop.time, lambda slot, why: None), site=SimpleNamespace(draft=draft),
            spawn=loop.create_task, rollouter=SimpleNamespace(counts=GroupCounts(), steps_left=8),
            says=SimpleNamespace(), starts={}, events=NO_EVENTS, evaluations=None, curriculum=None,
            lengths=LengthLog(None, TraceHeader(1, 1)),
        )  # fmt: skip
        view: Any = SimpleNamespace(message=said.append, update=lambda progress: None)
        report: Any = SimpleNamespace(start=lambda: began.append(read_unsent(tmp_path)))
        observer = RunObserver(inputs, HEADER, view, report)
        observer.begins(parts, 0)
        observer.training(0)
        async with asyncio.timeout(30):
            step = 0
            while not said:
                observer.step_begins([])
                observer.step_done(step_metrics(step), [0], 0, 0, 10.0)
                step += 1
                await asyncio.sleep(0.01)
        observer.trained()
        observer.close()
        assert await observer.ended() is None
        (row,) = [each for each in read_metrics(tmp_path / "metrics.jsonl").rows if each["step"] == step - 1]
        assert row["logger_lost"]["webhook"] > 0 or step == 1
        assert [[each.points for each in lost] for lost in began] == [[step]], "the report begins once, last"
        return observer.unsent()

    told = asyncio.run(main())
    assert told is not None and told.startswith("webhook: ")
    assert "Connection refused" in told and told.endswith(
        "metrics.jsonl and evaluations.jsonl have them (of a long run, the newer ones)."
    )
    (line,) = said
    assert line.startswith(
        "webhook: metrics are not sent for now: 127.0.0.1:9: [Errno 111] Connection refused"
    )
