"""What drafts gain in texts of a trained model: from the response itself, from siblings that ended on the
same engine, and from siblings that ended on another one.

The model learns `worked_sums` here, first from examples, then in an RLJob. Three of its states are looked at:
as it came from the examples, half way, and at the end of the job, for rewards make siblings more alike. With
each, four vLLM engines run the same prompts in turn, half of each of four groups, so few that drafts are made
from the begin to the end: one engine without drafts, one that drafts from the response's own text, one that
draws on siblings too, and one that has been told of the other half of each group besides, which ended on
another engine. That is where the last responses of a step are, with as few on an engine as drafts are for.
Responses end by themselves.

Told are counts, which do not depend on the machine: how many tokens a response gets in a step in which it
runs, and how many tokens the longest response of a batch has for each step of the engine. Tokens per second
are told too, and are rough. In the same run: how far log-probabilities are from a Hugging Face model's, and
whether rewards and log-probabilities with drafts are those without.

    python -m tests.bench.speculation_trained [--states FOLDER] [--out FOLDER]

With `--states` the trained states are kept in that folder, and taken from there where they are.
"""

import asyncio
import itertools
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.finished_texts import finished_text
from rljob_runtime.engines.protocol import FinishedText, Request, Sampling
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from tests.bench import worked_sums
from tests.bench.figures import Figure, parser, record
from tests.bench.real_runs import RUN, run_job
from tests.bench.speculation_tail import Batch, apart
from tests.bench.worked_sums import MODEL
from tests.support.runtime.engines import load, started
from tests.support.runtime.tiny_models import published

BASE_STEPS, STEPS, EVERY = 500, 90, 3
"""Of the base model; of the job, and after how many it has a checkpoint."""
PROMPTS, SAMPLES, BATCHES = 4, 8, 24
RUNNING = PROMPTS * SAMPLES // 2
"""Requests of a batch on one engine, which drafts while it runs no more than these."""
WITHOUT, OWN, HERE, ELSEWHERE = "without", "own text", "siblings here", "siblings elsewhere too"
MODES: dict[str, dict[str, Any] | None] = {
    WITHOUT: None, OWN: {"ngram": {}}, HERE: {"suffix": {}}, ELSEWHERE: {"suffix": {}},
}  # fmt: skip


class Step(NamedTuple):
    """What a step of an engine made."""

    time: float
    """When that was told, by time.perf_counter."""
    tokens: dict[str, int]
    """Of each response that got some."""


@dataclass
class Counted(Batch):
    """A batch, all of which is its tail, with what was counted of it."""

    steps: int = 0
    """Of the engine."""
    longest: int = 0
    """Tokens of the longest response: as many steps as it takes without drafts."""
    in_a_step: float = 0.0
    """Tokens that a response got in a step in which it ran."""
    rewards: float = 0.0
    """Mean."""

    @property
    def longest_per_step(self) -> float:
        return self.longest / self.steps

    @property
    def log_prob(self) -> float:
        """Mean log-probability of a token."""
        return float(np.concatenate([got.log_probs for _, got in self.pairs]).mean())

    def count(self, steps: Sequence[Step]) -> None:
        """Take in the steps of the batch."""
        got = Counter[str]()
        for step in steps:
            got.update(step.tokens)
        self.steps, self.tail_tokens, self.longest = len(steps), got.total(), max(got.values())
        self.in_a_step = self.tail_tokens / sum(len(step.tokens) for step in steps)
        self.tail_seconds = steps[-1].time - steps[0].time


@dataclass
class State:
    """A model on its way, and by mode what was measured with it."""

    name: str
    folder: Path
    batches: dict[str, list[Counted]]

    @property
    def title(self) -> str:
        plain = self.batches[WITHOUT]
        reward = statistics.mean(one.rewards for one in plain)
        surprise = -statistics.mean(one.log_prob for one in plain)
        return f"{self.name} (reward {reward:.2f}, {surprise:.2f} nats a token)"


class CountedEngine:
    """An engine whose steps are counted."""

    def __init__(self, mode: str, folder: Path) -> None:
        drafts = MODES[mode]
        speculation = None if drafts is None else drafts | {"atMostRunning": RUNNING}
        options = {"kvCacheGiB": 0.25} | ({"speculation": speculation} if speculation else {})
        # The core says something after every step only where it keeps no tokens to itself.
        self.engine = VllmEngine(
            mode, folder, Sampling(stop_token_ids=(worked_sums.EOS,)), RUNNING,
            2 * worked_sums.MOST + 2 + worked_sums.LONGEST, options=VllmOptions.model_validate(options),
            hold_outputs=False,
        )  # fmt: skip
        self.drafts = drafts is not None
        self.steps: list[Step] = []

    def count_steps(self) -> None:
        """From here on; the engine has started."""
        core = self.engine._live_core()
        note = core._note

        def counted(outputs: Any) -> None:
            if outputs.outputs:
                tokens = {each.request_id: len(each.new_token_ids) for each in outputs.outputs}
                self.steps.append(Step(time.perf_counter(), tokens))
            note(outputs)

        core._note = counted  # type: ignore[method-assign]

    async def run(self, asked: Sequence[tuple[str, Request]]) -> Counted:
        """One batch, from an idle engine to an idle engine."""
        result, before = Counted(), await self._counts()
        self.steps.clear()
        got = await asyncio.gather(*[self.engine.submit(request) for _, request in asked])
        result.pairs = [(request, each) for (_, request), each in zip(asked, got, strict=True)]
        result.count(self.steps)
        after = await self._counts()
        result.tail_drafted, result.tail_kept = after[0] - before[0], after[1] - before[1]
        result.rewards = statistics.mean(
            worked_sums.score(text, worked_sums.text(each.tokens)) if each.finish == "stop" else 0.0
            for (text, _), each in zip(asked, got, strict=True)
        )
        return result

    async def _counts(self) -> tuple[int, int]:
        return await self.engine._live_core().drafting_counts() if self.drafts else (0, 0)


def requests(
    state: int, batch: int, mode: str
) -> tuple[list[tuple[str, Request]], list[tuple[str, Request]]]:
    """Of each group of a batch the half for this engine, and the one for the other engine, with the prompts'
    texts."""
    random = np.random.default_rng([state, batch])
    found: tuple[list[tuple[str, Request]], ...] = ([], [])
    for group in range(PROMPTS):
        text = worked_sums.prompt(random)
        for sample in range(SAMPLES):
            name = f"{mode}-{state}-{batch}-{group}-{sample}"
            asked = Request(
                name, worked_sums.prompt_tokens(text), worked_sums.LONGEST, group * SAMPLES + sample
            )
            found[sample % 2].append((text, asked))
    return found[0], found[1]


def states(root: Path) -> list[State]:
    """The model's states, trained where they are not there yet."""
    base, run, written = root / MODEL, root / RUN, root / "states.json"
    if not base.exists():
        worked_sums.base_model(base, BASE_STEPS)
    if not written.exists():
        worked_sums.write_prompts(root, 16 * (STEPS + 4), seed=0)
        run_job(root, worked_sums.job(root, STEPS, EVERY), 3000)
        step = half_way([row["reward_mean"] for row in read_metrics(run / METRICS_FILE).rows])
        named = {"from examples": MODEL, f"half way, step {step}": _export(run, step)}
        written.write_text(json.dumps(named | {f"end, step {STEPS}": _export(run, STEPS)}))
    found = json.loads(written.read_text())
    return [State(name, published(root / folder), {}) for name, folder in found.items()]


def _export(run: Path, step: int) -> str:
    """Write a checkpoint as a model beside its run; the folder's name."""
    folder = run.parent / f"step-{step}"
    command = [
        sys.executable,
        "-m",
        "rljob_runtime.cli",
        "export",
        str(run),
        str(folder),
        "--step",
        str(step),
    ]
    subprocess.run(command, check=True)
    return folder.name


def half_way(rewards: Sequence[float]) -> int:
    """After which steps that have a checkpoint the reward is nearest to the middle between begin and end."""
    middle = (statistics.mean(rewards[:3]) + statistics.mean(rewards[-5:])) / 2
    steps = range(EVERY, len(rewards) - 1, EVERY)
    return min(steps, key=lambda step: abs(statistics.mean(rewards[step - 1 : step + 3]) - middle))


async def measure(found: Sequence[State]) -> None:
    """Run all batches, the engines in turn."""
    async with AsyncExitStack() as stack:
        engines = {mode: CountedEngine(mode, found[0].folder) for mode in MODES}
        for each in engines.values():
            await stack.enter_async_context(started(each.engine))
            each.count_steps()
        for number, state in enumerate(found):
            for each in engines.values():
                await load(each.engine, number + 1, state.folder)
            # The first batch lets engines find out how long drafts should be.
            for batch in range(BATCHES + 1):
                await _batch(engines, state, number, batch)
            for runs in state.batches.values():
                del runs[0]


async def _batch(engines: dict[str, CountedEngine], state: State, number: int, batch: int) -> None:
    other = await engines[WITHOUT].run(requests(number, batch, "other")[1])
    texts: list[FinishedText | None] = [finished_text(asked, got) for asked, got in other.pairs]
    engines[ELSEWHERE].engine.learn([text for text in texts if text is not None])
    order = list(engines)[batch % len(engines) :] + list(engines)[: batch % len(engines)]
    for mode in order:
        ran = await engines[mode].run(requests(number, batch, mode)[0])
        state.batches.setdefault(mode, []).append(ran)
        print(
            f"{state.name}, batch {batch}, {mode}: reward {ran.rewards:.2f}, {ran.tail_tokens} tokens in "
            f"{ran.steps} steps, {ran.tail_kept} of {ran.tail_drafted} kept, "
            f"{ran.in_a_step:.2f}, longest {ran.longest_per_step:.2f}, {ran.tail_seconds:.2f} s",
            flush=True,
        )


def figures(found: Sequence[State]) -> list[Figure]:
    """Of each state: each way to draft beside the one with less to draft from, all of them beside none, and
    what must be the same."""
    rows = []
    for state in found:
        for before, mode in itertools.pairwise(MODES):
            ours, less = state.batches[mode], state.batches[before]
            drafted = sum(one.tail_drafted for one in ours)
            kept = sum(one.tail_kept for one in ours) / max(1, drafted)
            name = f"{state.title}, {mode}, {kept:.0%} of {drafted:,} drafts kept: a response"
            rows.append(
                _beside(f"{name} in a step, beside {before}", "tokens", ours, less, lambda one: one.in_a_step)
            )
        ours, plain = state.batches[ELSEWHERE], state.batches[WITHOUT]
        name = f"{state.title}, {ELSEWHERE}, beside {WITHOUT}"
        rows += [
            _beside(
                f"{name}: the longest response in a step of the engine",
                "tokens",
                ours,
                plain,
                lambda one: one.longest_per_step,
            ),
            _beside(f"{name}: all responses, roughly", "tokens/s", ours, plain, lambda one: one.tail_rate),
            *parity(state, found[0].folder),
        ]
    return rows


def _beside(
    name: str, unit: str, ours: Sequence[Counted], theirs: Sequence[Counted], pick: Callable[[Counted], float]
) -> Figure:
    values, base = ([pick(one) for one in of] for of in (ours, theirs))
    deviation = statistics.stdev(a / b for a, b in zip(values, base, strict=True))
    name = f"{name} (ratio ± {deviation:.2f} over {len(values)} batches)"
    return Figure(name, statistics.mean(values), unit, statistics.mean(base))


def parity(state: State, whole: Path) -> list[Figure]:
    """What drafts must not change."""
    drafted, plain = state.batches[ELSEWHERE], state.batches[WITHOUT]
    rows = [
        Figure(
            f"{state.title}, {ELSEWHERE}: mean |engine - trainer| log-probability",
            apart(state.folder, whole, list(drafted)), "nats", apart(state.folder, whole, list(plain)),
        )
    ]  # fmt: skip
    same: list[tuple[str, str, Callable[[Counted], float]]] = [
        ("reward of all responses", "reward", lambda one: one.rewards),
        ("mean log-probability of a token", "nats", lambda one: one.log_prob),
    ]
    for what, unit, pick in same:
        values, base = ([pick(one) for one in of] for of in (drafted, plain))
        error = math.hypot(*(statistics.stdev(each) / math.sqrt(len(each)) for each in (values, base)))
        name = f"{state.title}, {ELSEWHERE}: {what} (difference ± {error:.3f})"
        rows.append(Figure(name, statistics.mean(values), unit, statistics.mean(base)))
    return rows


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--states", type=Path, help="folder of the trained states")
    options = line.parse_args()
    root = options.states or Path(tempfile.mkdtemp(prefix="rljob-bench-", dir="/dev/shm"))
    try:
        found = states(root.resolve())
        asyncio.run(measure(found))
        record("speculation_trained", figures(found), options.out)
    finally:
        if options.states is None:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
