"""A run's folder becomes assumptions that `rljob simulate` reads."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml

from rljob_api import RLJob
from rljob_runtime.data.length_trace import LENGTHS_FILE, ResponseLine, TraceHeader, read_length_trace
from rljob_runtime.manifest.assumptions import read_assumptions
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.run_folder import MANIFEST
from rljob_runtime.simulate.site import Site
from rljob_runtime.trace.forecast.engine_fit import Attempt, fit_engines
from rljob_runtime.trace.forecast.run_fit import NothingToFit, fit_run, read_run, working
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, EventLog
from rljob_runtime.trace.record.metrics_log import METRICS_FILE
from rljob_runtime.trace.record.start_log import Start, append_start
from tests.support.jobs import job
from tests.support.simulated.attempts import simulated_attempts

COST = StepCost(fixed=0.01, per_request=4e-4, per_kv_token=1e-6, per_prefill_token=2e-5)
RANKS = 2


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with the events of two engines and two trainer ranks, metrics and lengths."""
    events = tmp_path / EVENTS_FOLDER
    uid = 0
    with (tmp_path / LENGTHS_FILE).open("wb") as lengths:
        lengths.write(msgspec.json.encode(TraceHeader(1, 2000)) + b"\n")
        for number, attempts in enumerate(simulated_attempts(COST, engines=2, groups=60, seed=1)):
            log = EventLog(events, number, f"fast-{number}", "fast")
            for attempt in attempts:
                log.add(
                    "generate", 0, attempt.begin, attempt.end - attempt.begin, uid=uid,
                    request=f"{uid}.0#1", tokens=attempt.tokens, length=attempt.tokens, finish="stop",
                )  # fmt: skip
                line = ResponseLine(uid, 0, attempt.tokens, prompt_tokens=attempt.earlier)
                lengths.write(msgspec.json.encode(line) + b"\n")
                uid += 1
            # After the last response, when nothing is generated.
            for event, seconds in (("weight_pause", 0.25), ("weight_load", 1.0), ("weight_resume", 0.25)):
                log.add(event, 1, 1e6, seconds)
            log.flush()
    tokens = [1000, 2000, 4000, 3000, 2500]
    for rank in range(RANKS):
        log = EventLog(events, 10 + rank, f"trainer-{rank}", "trainer")
        for step, count in enumerate(tokens):
            # The first step also compiles.
            log.add("forward", step, 0.0, 0.5 * count * 1e-3 + 20 * (step == 0))
            log.add("backward", step, 0.0, 0.5 * count * 1e-3)
            for event, seconds in (("share", 0.1), ("gather", 0.3), ("optimizer", 1.0), ("reduce", 0.1)):
                log.add(event, step, 0.0, seconds)
            log.add("idle", step, 0.0, 100.0)
        log.flush()
    rows = [{"step": step, "time": 1.0, "tokens": count} for step, count in enumerate(tokens)]
    (tmp_path / METRICS_FILE).write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return tmp_path


def test_a_run_s_constants_are_assumptions(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "measured.yaml"
    file.write_text(fit_run(run))
    found, _ = read_assumptions(file)
    engine = found.engines.fast
    assert engine.fixed_seconds == pytest.approx(COST.fixed, rel=0.15)
    fitted = engine.fixed_seconds + 16 * engine.seconds_per_request + 8000 * engine.seconds_per_kv_token
    assert fitted == pytest.approx(COST.step(16, 8000), rel=0.05)
    assert engine.graphs == [] and engine.kv_tokens is None
    assert found.engines.heavy is None
    assert found.trainer.seconds_per_step == pytest.approx(1.5, rel=1e-3)
    # Both ranks took 1 ms a token of the step, so that one alone would take 2 ms.
    assert found.trainer.seconds_per_token == pytest.approx(RANKS * 1e-3, rel=1e-3)
    assert found.weight_sync_seconds == pytest.approx(1.5)
    assert found.lengths.prompt_tokens == 200
    assert found.lengths.mean == pytest.approx(300, rel=0.25)


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ((None, None), None),
        ((750_000, 700_000), 700_000),
        ((None, 700_000), 700_000),
        # No response of the run would have fitted, and nobody has as much.
        ((3, 700_000), 700_000),
        ((3, None), None),
        ((10**13, None), None),
    ],
)
def test_how_much_a_cache_holds_is_what_engines_said(
    run: Path, said: tuple[int | None, ...], known: int | None
) -> None:
    for number, kv_tokens in enumerate(said):
        EventLog(run / EVENTS_FOLDER, number, f"fast-{number}", "fast").has_cache(kv_tokens)
    file = run / "measured.yaml"
    file.write_text(fit_run(run))
    assert read_assumptions(file)[0].engines.fast.kv_tokens == known
    assert ("those of the fast pool did not" in file.read_text()) == (known is None)


def test_no_cache_holds_less_than_the_longest_lengths_that_a_file_may_say(run: Path) -> None:
    """Prompt and response together are more tokens than an int32 holds."""
    most = 2**31 - 1
    line = ResponseLine(0, 0, most, prompt_tokens=most)
    header = TraceHeader(1, most)
    (run / LENGTHS_FILE).write_bytes(b"\n".join(map(msgspec.json.encode, (header, line))) + b"\n")
    EventLog(run / EVENTS_FOLDER, 0, "fast-0", "fast").has_cache(most)
    found = read_run(run, read_length_trace(run / LENGTHS_FILE))
    assert found.longest == 2 * most
    assert found.cache(["fast"]) is None


EVENT = b'{"event": "generate", "start": 5.0, "duration": 1.0, "step": 0, "worker": "%s", "pool": "fast", '

LASTS = (EVENT % b"fast-0").replace(b"1.0", b"%s") + b'"extra": {"tokens": 50, "uid": 1, "request": "1.0#9"}}'


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(EVENT % b"fast-\xc3" + b'"extra": {}}', id="not UTF-8"),
        pytest.param(EVENT % b"fast-0" + b'"extra": {"a": ' + b"[" * 100_000, id="nested too deeply"),
        pytest.param(EVENT % b"fast-0" + b'"extra": {"tokens": "two", "uid": null}}', id="no numbers"),
        pytest.param(LASTS % b"-5.0", id="a clock that was set back"),
        pytest.param(LASTS % b"1e308", id="a duration without end"),
    ],
)
def test_lines_that_are_no_event_of_a_response_are_left_out(run: Path, line: bytes) -> None:
    before = fit_run(run)
    with (run / EVENTS_FOLDER / "step_0" / "worker_0.jsonl").open("ab") as file:
        file.write(line + b"\n")
    assert fit_run(run) == before


@pytest.mark.parametrize("seconds", [-0.5, 0.0])
def test_attempts_that_took_no_time_are_left_out_and_counted(run: Path, seconds: float) -> None:
    before = fit_run(run)
    with (run / EVENTS_FOLDER / "step_0" / "worker_0.jsonl").open("ab") as file:
        file.write(LASTS % b"%g" % seconds + b"\n")
    after = fit_run(run)
    assert "R² of their durations 1.000; left out: 1 that took no time" in after
    assert yaml.safe_load(after) == yaml.safe_load(before)


def test_updates_that_end_before_they_begin_took_no_time(run: Path) -> None:
    for step in range(4):
        for worker, pool, event in ((20, "driver", "weight_publish"), (0, "fast", "weight_pause")):
            log = EventLog(run / EVENTS_FOLDER, worker, "fast-0" if pool == "fast" else pool, pool)
            log.add(event, step + 2, 2e6 + 100 * step, -0.5)
            log.flush()
    file = run / "measured.yaml"
    file.write_text(fit_run(run))
    found, _ = read_assumptions(file)
    assert found.weight_publish_seconds == 0
    assert found.weight_sync_seconds == pytest.approx(1.5)


def test_an_engine_that_goes_on_with_a_version_does_not_stand_still_for_it(run: Path) -> None:
    log = EventLog(run / EVENTS_FOLDER, 0, "fast-0", "fast")
    log.add("weight_swap", 2, 2e6, 0.5)
    log.flush()
    file = run / "measured.yaml"
    file.write_text(fit_run(run))
    found, _ = read_assumptions(file)
    # Two updates of 1.5 s were there before.
    assert found.weight_sync_seconds == pytest.approx(1.0)


def test_other_files_among_those_of_events_are_passed_over(run: Path) -> None:
    before = fit_run(run)
    (run / EVENTS_FOLDER / "step_²").mkdir()
    (run / EVENTS_FOLDER / "step_7").touch()
    (run / EVENTS_FOLDER / "step_0" / "worker_99.jsonl").mkdir()
    assert fit_run(run) == before


@pytest.mark.parametrize("line", [b'{"step": "\xff"}', b'{"step": ' + b"[" * 100_000])
def test_lines_that_are_no_metrics_are_left_out(run: Path, line: bytes) -> None:
    before = fit_run(run)
    with (run / METRICS_FILE).open("ab") as file:
        file.write(b"\n" + line)
    assert fit_run(run) == before


def test_comments_say_how_good_the_fit_is(run: Path) -> None:
    text = fit_run(run)
    assert "# engines.fast: 240 attempts on 2 engines, R² of their durations 1.000" in text
    assert "# trainer: 4 steps of 2 ranks, R² of their seconds 1.000" in text
    assert "# trainer: job.yaml cannot be read; every rank is taken to have had samples" in text
    assert "# weightSyncSeconds: mean of 2 updates of an engine" in text


def version(run: Path, step: int, published: float, begun: float, stored: bool) -> None:
    """Add a version that is published in 0.5 s, and that an engine pauses for at `begun`."""
    driver = EventLog(run / EVENTS_FOLDER, 20, "driver", "driver")
    driver.add("weight_publish", step, published, 0.5)
    driver.flush()
    trainer = EventLog(run / EVENTS_FOLDER, 10, "trainer-0", "trainer")
    # A rank's part of it is in the driver's.
    trainer.add("weight_publish", step, published, 0.25)
    if stored:
        trainer.add("weight_write", step, published + 0.5, 1.0)
    trainer.flush()
    engine = EventLog(run / EVENTS_FOLDER, 0, "fast-0", "fast")
    engine.add("weight_pause", step, begun, 0.0)
    engine.flush()


@pytest.mark.parametrize("stored", [True, False])
def test_a_version_s_way_is_that_of_the_versions_after_the_first(run: Path, stored: bool) -> None:
    for step, begun in enumerate((9.0, 13.0, 15.0, 14.0)):
        at = 2e6 + 100 * step
        version(run, step + 2, at, at + begun, stored)
    text = fit_run(run)
    assert "# weightPublishSeconds, weightDeliverySeconds: medians of 3 versions" in text
    found = yaml.safe_load(text)
    assert (found["weightPublishSeconds"], found["weightDeliverySeconds"]) == (0.5, 13.5)
    assert found["trainerSendsWeights"] is not stored


def test_a_version_s_way_is_left_at_its_default_where_nobody_saw_it(run: Path) -> None:
    text = fit_run(run)
    assert "weightDeliverySeconds: no version was seen from the trainer to an engine; defaults" in text
    assert not {"weightPublishSeconds", "weightDeliverySeconds", "trainerSendsWeights"} & set(
        yaml.safe_load(text)
    )


def test_an_engine_s_first_step_warms_it_up(tmp_path: Path) -> None:
    attempts = simulated_attempts(COST, engines=1, groups=60, seed=1)[0]
    apart = 2 * max(attempt.end for attempt in attempts)

    def cost(steps: int, warming: float) -> tuple[float, ...]:
        """Fitted to so many equal steps, where each response of the first one takes longer by `warming`."""
        run = tmp_path / f"{steps} steps, {warming:g} s"
        log = EventLog(run / EVENTS_FOLDER, 0, "fast-0", "fast")
        for step in range(steps):
            for attempt in attempts:
                seconds = attempt.end - attempt.begin + warming * (step == 0)
                begin = attempt.begin + step * apart
                log.add("generate", step, begin, seconds, tokens=attempt.tokens, length=attempt.tokens)
        log.flush()
        found = fit_engines(read_run(run, None).working(["fast"]))
        assert found is not None
        return found.cost[:4]

    assert cost(4, warming=1.0) == pytest.approx(cost(4, warming=0.0))
    assert cost(3, warming=1.0) != pytest.approx(cost(3, warming=0.0)), "it has too few others"


def fitted_trainer(run: Path) -> tuple[float, float]:
    trainer = yaml.safe_load(fit_run(run))["trainer"]
    return trainer["secondsPerStep"], trainer["secondsPerToken"]


def test_prompts_that_are_not_in_the_file_any_more_are_as_long_as_the_others(run: Path) -> None:
    file = run / LENGTHS_FILE
    header, *responses = file.read_bytes().splitlines(keepends=True)
    before = yaml.safe_load(fit_run(run))["engines"]["fast"]
    header = msgspec.json.encode(TraceHeader(1, 2000, removed=len(responses) // 2)) + b"\n"
    file.write_bytes(header + b"".join(responses[::2]))
    text = fit_run(run)
    assert f"prompts, without {len(responses) // 2:,} that are not in the file any more; --trace" in text
    after = yaml.safe_load(text)["engines"]["fast"]
    assert after["secondsPerKvToken"] == pytest.approx(before["secondsPerKvToken"], rel=0.35)
    assert after["fixedSeconds"] == pytest.approx(before["fixedSeconds"], rel=0.1)


def test_a_run_whose_prompts_all_lack_a_response_has_no_lengths(run: Path) -> None:
    file = run / LENGTHS_FILE
    _, *responses = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([msgspec.json.encode(TraceHeader(2, 2000)) + b"\n", *responses]))
    text = fit_run(run)
    assert f"\n# lengths: 0 prompts, without {len(responses):,} that lack a response (mostly long" in text
    assert "lengths" not in yaml.safe_load(text)
    file.unlink()
    assert f"\n# lengths: {file} cannot be read; defaults\n" in fit_run(run)


def test_steps_that_were_trained_again_cost_what_the_last_time_took(run: Path) -> None:
    before = fitted_trainer(run)
    # Steps 3 and 4 had been trained, slowly, before a trainer was lost: events of 0.0 came after that.
    for rank in range(RANKS):
        log = EventLog(run / EVENTS_FOLDER, 20 + rank, f"trainer-{rank}", "trainer")
        for step in (3, 4):
            log.add("forward", step, -200.0, 50.0)
        # The first step of the new ranks also compiles.
        log.add("forward", 3, 0.0, 20.0)
        log.flush()
    append_start(run, Start(-300.0, 0, "new"))
    append_start(run, Start(-100.0, 3, "trainer lost", "rank 1 died", -140.0, 2))
    assert fitted_trainer(run) == pytest.approx(before)


def test_a_trainer_that_was_resized_costs_for_each_token_of_a_rank(run: Path) -> None:
    fixed, each = fitted_trainer(run)
    # Three more steps by four ranks, which share the tokens.
    with (run / METRICS_FILE).open("ab") as metrics:
        for step, count in enumerate([4000, 6000, 8000], 5):
            metrics.write(b"\n" + msgspec.json.encode({"step": step, "time": 1.0, "tokens": count}))
            for rank in range(2 * RANKS):
                log = EventLog(run / EVENTS_FOLDER, 30 + rank, f"trainer-{rank}", "trainer")
                log.add("forward", step, 0.0, 1.5 + count * 1e-3 / 2)
                log.flush()
    assert fitted_trainer(run) == pytest.approx((fixed, each), rel=1e-2)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_trainer_with_ranks_without_samples_is_simulated_as_it_was_measured(
    run: Path, tmp_path: Path, samples: int
) -> None:
    few = {"training.schedule.promptsPerBatch": 1, "training.rollout.samplesPerPrompt": samples}
    document = job({"pools.trainer.replicas": RANKS, **few})
    (run / MANIFEST).write_text(yaml.safe_dump(document))
    file = tmp_path / "measured.yaml"
    file.write_text(text := fit_run(run))
    model = Site(RLJob.model_validate(document).spec, read_assumptions(file)[0], steps=1).job()
    # A step took 1.5 s, and 1 ms for each of its tokens.
    assert model.trainer_seconds == pytest.approx(1.5, rel=1e-3)
    assert model.trainer_seconds_per_token == pytest.approx(1e-3, rel=1e-3)
    assert ("4 steps of 2 ranks, 1 of them without samples, R²" in text) == (samples < RANKS)


def test_what_a_run_does_not_tell_is_left_at_its_default(run: Path) -> None:
    (run / METRICS_FILE).unlink()
    (run / LENGTHS_FILE).unlink()
    text = fit_run(run)
    assert "# trainer: too few steps to fit; defaults" in text
    assert set(yaml.safe_load(text)) == {"engines", "weightSyncSeconds"}


@pytest.mark.parametrize(("pool", "unfitted"), [("heavy", "fast"), ("fast", None)])
def test_engines_of_a_pool_that_the_run_did_not_have_are_said_to_be_defaults(
    tmp_path: Path, pool: str, unfitted: str | None
) -> None:
    log = EventLog(tmp_path / EVENTS_FOLDER, 0, f"{pool}-0", pool)
    for attempt in simulated_attempts(COST, engines=1, groups=60, seed=1)[0]:
        seconds = attempt.end - attempt.begin
        log.add("generate", 0, attempt.begin, seconds, tokens=attempt.tokens, length=attempt.tokens)
    log.flush()
    text = fit_run(tmp_path)
    assert " attempts on 1 engine, R²" in text
    assert set(yaml.safe_load(text)["engines"]) == {pool, "admissionSeconds"}
    assert ("# engines.fast: no attempt; defaults, of an 8 B model on an H200" in text) == bool(unfitted)
    assert "# engines.heavy: no attempt" not in text
    (tmp_path / MANIFEST).write_text(yaml.safe_dump(job({"pools.heavyRollout.replicas": 1})))
    no_heavy = "# engines.heavy: no attempt; follows from a fast one"
    assert (no_heavy in fit_run(tmp_path)) == (pool == "fast")


@pytest.mark.parametrize(
    ("tokens", "prompt", "notes"),
    [
        ([1, 1_000_000], 200, ["lengths.betweenPrompts: 6.925 was measured, and 4 is the most allowed"]),
        (
            [5, 5],
            2_000_000_000,
            ["lengths.promptTokens: 2,000,000,000 was measured, and 1,048,576 is the most allowed"],
        ),
        ([5, 50], 200, []),
    ],
    ids=["of very different lengths", "with long prompts", "of usual lengths"],
)
def test_lengths_beyond_what_is_allowed_are_the_most_that_is_and_said_so(
    run: Path, tokens: list[int], prompt: int, notes: list[str]
) -> None:
    lines = [TraceHeader(1, 1_048_576)]
    lines += [ResponseLine(uid, 0, tokens[uid % 2], prompt_tokens=prompt) for uid in range(200)]
    (run / LENGTHS_FILE).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    file = run / "measured.yaml"
    file.write_text(text := fit_run(run))
    read_assumptions(file)
    assert [line[2:] for line in text.splitlines() if "was measured" in line] == notes


def test_a_run_without_events_has_nothing_to_fit(tmp_path: Path) -> None:
    with pytest.raises(NothingToFit, match=r"has no generate event: was training.profiling.events false\?"):
        fit_run(tmp_path)


def test_time_for_new_weights_is_no_time_of_an_attempt() -> None:
    attempts = [Attempt(0.0, 10.0, 5, 0), Attempt(4.0, 6.0, 5, 0), Attempt(12.0, 20.0, 5, 0)]
    moved = working(attempts, [(8.0, 1.0), (5.0, 2.0)])
    times = [(each.begin, each.end) for each in moved]
    assert np.array(times) == pytest.approx(np.array([(0, 7), (4, 5), (9, 17)]))
    assert working(attempts, []) == attempts
