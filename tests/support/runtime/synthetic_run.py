"""A run folder as a job leaves it, from a small model of a job: for tests of analysis and report.

Engines with places, a trainer that waits for its groups, admission by a staleness bound, weight updates,
lengths with a heavy tail. Written through the real `EventLog` and `MetricsLog`, with a clock of its own.
"""

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rljob_runtime.data.length_trace import LENGTHS_FILE, ResponseLine, TraceHeader
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, EventLog, append_line
from rljob_runtime.trace.record.metrics_log import MetricsLog
from tests.support.runtime.steps import masked_tokens, pass_metrics

EPOCH = 1_800_000_000.0
"""When runs begin, in seconds since the epoch."""

MANIFEST = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: synthetic}
spec:
  accelerator: cpu
  pools: {fastRollout: {replicas: 2}, heavyRollout: {replicas: 1}}
  training:
    model: {random: {maxPositionEmbeddings: 512}}
    tokenizer: {characters: {}}
    data: {generated: {task: copy, minLength: 4, maxLength: 4, letters: 8}, maxPromptTokens: 16}
    reward: {function: "rljob_runtime.rewards.tasks:copy"}
    rollout: {engine: {vllm: {}}, samplesPerPrompt: 8, maxResponseTokens: 400}
    schedule: {totalSteps: 60, promptsPerBatch: 8}
"""


@dataclass
class Job:
    """The job that is modelled. Times in seconds."""

    steps: int = 60
    fast: int = 2
    heavy: int = 1
    places: int = 8
    groups: int = 8
    samples: int = 8
    bound: int = 1
    token_seconds: float = 0.01
    train_seconds: float = 1.0
    start_seconds: float = 30.0
    """From the trainer's being ready to the first step."""
    trainers: int = 2
    limit: int = 400
    slow_step: int | None = None
    """One request of this step hangs for 40 s."""
    slow_engine: float = 1.0
    """Factor on the durations of the first engine."""
    restart_at: int | None = None
    """The job is killed in this step and goes on from the step 5 before."""
    by_length: bool = False
    """What is taken out half-way goes on on the first heavy engine, as it turned out to be long; how work is
    divided, and what was expected, is recorded."""
    masked: float = 0.0
    """Share of the tokens that are too old to be trained; 0: steps wait."""
    seed: int = 0


@dataclass
class _State:
    now: float
    lanes: list[tuple[float, int, int]] = field(default_factory=list)
    uid: int = 0
    trained_at: list[float] = field(default_factory=list)


def write_run(folder: Path, job: Job) -> Path:
    """Write the run of `job` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(MANIFEST)
    now = _write(folder, job, 0, job.steps if job.restart_at is None else job.restart_at + 1, EPOCH)
    if job.restart_at is not None:
        _write(folder, job, job.restart_at - 5, job.steps, now + 20)
    return folder


def _write(folder: Path, job: Job, first: int, last: int, began: float) -> float:
    rng = random.Random(job.seed + first)
    events = folder / EVENTS_FOLDER
    driver = EventLog(events, 0, "driver", "driver")
    # Ranks with gaps between the pools: up to 49 engines of a pool fit.
    engines = [EventLog(events, 1 + index, f"fast-{index}", "fast") for index in range(job.fast)]
    engines += [EventLog(events, 50 + index, f"heavy-{index}", "heavy") for index in range(job.heavy)]
    trainers = [EventLog(events, 100 + index, f"trainer-{index}", "trainer") for index in range(job.trainers)]
    state = _State(
        began, [(began, index, place) for index in range(len(engines)) for place in range(job.places)]
    )
    state.uid = first * job.groups
    heapq.heapify(state.lanes)
    clock = [began]
    metrics = MetricsLog(folder, clock=lambda: clock[0])
    metrics.begin(first)
    state.trained_at = [began] * (first + 1)
    busy_until = [began] * len(engines)
    # The ranks are ready, and wait, before the engines are.
    rested = [began - job.start_seconds] * job.trainers
    for step in range(first, last):
        # The bound: groups of a step are dispatched once `step - bound` steps are trained.
        admitted = state.trained_at[max(first, step - job.bound)]
        for log in (driver, *engines, *trainers):
            _use(log, step, state.trained_at[-1] - 1.0, state.trained_at[-1], log in engines)
        ready, lengths, waits = admitted, [], []
        for _ in range(job.groups):
            uid, ended = state.uid, 0.0
            state.uid += 1
            free = state.lanes[0][0]
            if free < admitted and uid % job.groups == 0:
                driver.add("admission_wait", step, free, admitted - free)
            driver.add("prompt_fetch", step, max(free, admitted), 0.0004, uid=uid)
            for index in range(job.samples):
                # Each response goes to the place that is free first.
                free, engine, place = heapq.heappop(state.lanes)
                tokens = min(job.limit, max(1, int(rng.lognormvariate(math.log(60), 0.8))))
                seconds = tokens * job.token_seconds * (job.slow_engine if engine == 0 else 1.0)
                if step == job.slow_step and uid % job.groups == 0 and index == 0:
                    seconds += 40
                start = max(free, admitted)
                if start > busy_until[engine] + 0.01:
                    engines[engine].add("idle", step, busy_until[engine], start - busy_until[engine])
                busy_until[engine] = max(busy_until[engine], start + seconds)
                # One longer response in ten is taken out half-way and goes on as another attempt.
                split = tokens // 2 if rng.random() < 0.1 and tokens > 20 else 0
                finish = "length" if tokens == job.limit else "stop"
                name, at = f"{uid}.{index}", start
                if split:
                    part = seconds * split / tokens
                    engines[engine].add(
                        "generate", step, at, part,
                        uid=uid, request=f"{name}#{2 * uid}", tokens=split, length=split, finish="abort",
                        left="long" if job.by_length else "update",
                    )  # fmt: skip
                    at, seconds = at + part + 0.05, seconds - part
                engines[job.fast if split and job.by_length else engine].add(
                    "generate", step, at, seconds, uid=uid, request=f"{name}#{2 * uid + 1}",
                    tokens=tokens - split, length=tokens, finish=finish, phases=_phases(seconds),
                )  # fmt: skip
                heapq.heappush(state.lanes, (at + seconds, engine, place))
                ended = max(ended, at + seconds)
                lengths.append(tokens)
            # What the group goes through when its last response has ended.
            scoring = 0.01 + rng.random() * 0.03
            driver.add(
                "reward", step, ended, scoring, uid=uid, waiting=0.004, running=0.006, spread=1.5,
                rewards=[1 - length / (2 * job.limit) for length in lengths[-job.samples :]],
            )  # fmt: skip
            driver.add("group_assembly", step, ended + scoring, 0.0005, uid=uid)
            driver.add("put", step, ended + scoring + 0.0005, 0.001, uid=uid)
            waits.append((uid, ended + scoring + 0.002))
            ready = max(ready, waits[-1][1])
        if job.by_length:
            driver.add("division", step, admitted, ready - admitted, engines=job.heavy, cut=100 + step)
            _expected(folder / LENGTHS_FILE, job, rng, step, lengths)
        # The step begins when its groups are there and the one before has ended.
        start = max(ready, state.trained_at[-1])
        for uid, put in waits:
            driver.add("queue_wait", step, put, start - put, uid=uid)
        driver.add("idle", step, state.trained_at[-1], start - state.trained_at[-1], why="groups")
        seconds = job.train_seconds * (0.9 + 0.2 * rng.random())
        for rank, log in enumerate(trainers):
            log.add("idle", step, rested[rank], start - rested[rank])
            rested[rank] = _train(log, step, start, seconds * (1 - 0.05 * rank))
        state.trained_at.append(start + seconds)
        # Engines stop for the new version as soon as the step has ended.
        for log in engines:
            at = start + seconds
            for event, cost in (("weight_pause", 0.01), ("weight_load", 0.05), ("weight_resume", 0.003)):
                log.add(event, step + 1, at, cost)
                at += cost
        clock[0] = start + seconds
        metrics.write(step, _values(job, rng, step, lengths, seconds))
    for log in (driver, *engines, *trainers):
        log.flush()
    metrics.close()
    return clock[0]


def _phases(seconds: float) -> dict[str, float]:
    """What a stay of so many seconds was made of."""
    return {"queued": 0.03 * seconds, "prefill": 0.02 * seconds, "decode": 0.94 * seconds}


def _use(log: EventLog, step: int, began: float, ended: float, engine: bool) -> None:
    """A sample of what a worker used."""
    values = {"cpu": 0.5 + 0.1 * (step % 7), "memory_mib": 900.0 + step}
    if engine:
        values |= {"running": 8.0, "waiting": 0.0, "kv_use": 0.4 + 0.05 * (step % 9)}
        values |= {"prefix_asked": 400.0, "prefix_hits": 90.0, "preemptions": 0.0}
    log.add("usage", step, began, ended - began, **values)


def _expected(path: Path, job: Job, rng: random.Random, step: int, lengths: list[int]) -> None:
    """Write the lengths of a step's responses, each expected to be up to twice or half as long."""
    head = TraceHeader(job.samples, job.limit)
    lines = [
        ResponseLine(
            step * job.groups + place // job.samples, place % job.samples, tokens, version=step,
            expected=round(tokens * 2 ** rng.uniform(-1, 1)), cut=100 + step,
        )
        for place, tokens in enumerate(lengths)
    ]  # fmt: skip
    for line in [*([] if path.exists() else [head]), *lines]:
        append_line(path, msgspec.json.encode(line))


def _train(log: EventLog, step: int, start: float, seconds: float) -> float:
    """One rank's step, the weights that it publishes after it, and its checkpoints; when all of it ended."""
    shares = (("get", 0.02), ("reference_forward", 0.1), *(("forward", 0.08), ("backward", 0.13)) * 4)
    at = start
    for event, share in (*shares, ("optimizer", 0.04)):
        log.add(event, step, at, seconds * share)
        at += seconds * share
    after = {"weight_publish": 0.05, **({"checkpoint": 0.2} if step % 10 == 9 else {})}
    for event, took in after.items():
        log.add(event, step, at, took)
        at += took
    return at


def _values(job: Job, rng: random.Random, step: int, lengths: list[int], seconds: float) -> dict[str, object]:
    done = 1 / (1 + math.exp(-(step - job.steps / 2.5) / (job.steps / 9)))
    ages = Counter(str(min(job.bound, step, int(rng.random() * 1.6))) for _ in lengths)
    return {
        "loss": 0.02 * rng.gauss(0, 1), "policy_loss": 0.02 * rng.gauss(0, 1),
        "kl": 0.03 * done * rng.random(), "entropy": 2 - 1.6 * done,
        "grad_norm": 0.4 + 0.3 * rng.random(), "learning_rate": 1e-3,
        "reward_mean": 0.08 + 0.9 * done + 0.02 * rng.gauss(0, 1), "reward_std": 0.3 * (1 - done),
        "reward_min": 0.0, "reward_p10": 0.5 * done, "reward_median": done, "reward_p90": 0.9 + 0.1 * done,
        "reward_max": 1.0, "equal_groups": done,
        "clip_fraction": 0.05 * rng.random(), "parity_max": 1e-5 * rng.random(), "parity_mean": 1e-6,
        "tokens": sum(lengths), "response_tokens": sum(lengths), "samples": len(lengths), "failed": 0,
        "response_length_mean": sum(lengths) / len(lengths), "response_length_max": max(lengths),
        "cut_off": 0.0,
        "staleness_mean": sum(int(age) * count for age, count in ages.items()) / len(lengths),
        "staleness_max": max(map(int, ages)), "staleness_histogram": dict(ages),
        "mixed_share": 0.1 * rng.random(),
        "queue_depth": rng.randrange(0, 64),
        "tokens_per_second": sum(lengths) / (seconds + 2),
        "weight_version": step, "step_seconds": seconds, "seconds": {"forward": seconds * 0.4},
        **({"masked": msgspec.structs.asdict(masked_tokens(job.masked))} if job.masked else {}),
        "passes": msgspec.structs.asdict(pass_metrics(0.5 * seconds, first=not step)),
        **_counts(job, step).metrics(),
    }  # fmt: skip


def _counts(job: Job, step: int) -> GroupCounts:
    """A batch is under way; one response in ten steps has no reward; a restart cancels and discards."""
    counts = GroupCounts(moved_requests=step // 20, rejected={"timeout": step // 10} if step >= 10 else {})
    counts.dispatched = counts.accepted = (step + 1) * job.groups
    if job.restart_at is not None and step >= job.restart_at:
        counts.dispatched += 6 * job.groups
        counts.accepted += 5 * job.groups
        counts.cancelled["job resumed"] = job.groups
        counts.discarded["job resumed"] = 5 * job.groups
    counts.dispatched, counts.open = counts.dispatched + job.groups, job.groups
    return counts
