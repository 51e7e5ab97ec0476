"""How many vLLM engines one accelerator should have, and what else spares the CPU that an engine is bound by.

Setups are measured side by side, each with the same requests in all: as many random prompts, with a forced
number of tokens each, on a random model. A setup is one engine, or several that share the accelerator and the
requests, each with its part of the memory for KV cache: in one worker process, as `enginesPerAccelerator` of
a job has them, or in one each. Further setups are one engine with another option of vLLM: see `SETUPS`.
Within the first setup what can be changed while an engine runs is changed: the engine core's garbage
collector, the CPU that its main thread runs on, and, with an update half-way at which the KV cache is
dropped, how many tokens a step takes. The baseline of all is the one engine with nothing changed.

    python tests/bench/engines_per_accelerator.py --seconds 300 --out FOLDER
                                        on a GPU with 78 GiB and eight CPUs or more: model of the shape of
                                        Qwen3-0.6B, 512 and 64 requests. Two setups at a time, about 65 s for
                                        both; `--together 3` on a GPU with 140 GiB
    python tests/bench/engines_per_accelerator.py --tiny --together 1 --out FOLDER     on a CPU

Neither Ray nor a network is needed. Figures are written each time that one is done, and printed in the end;
after `--seconds` nothing more is begun. A setup that does not start is left out, and said.
"""

import argparse
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "crds"))
sys.path.insert(0, str(Path(__file__).parents[2] / "runtime"))
from tests.bench.engine_step import Work, write_model
from tests.bench.figures import Figure, record
from tests.bench.hosted_engine import RUN_SECONDS, Change, Ran, Setup, host

_START_SECONDS, _CLOSE_SECONDS = 400.0, 30.0

ONE = Setup("one engine")
SETUPS = (
    ONE,
    Setup("two engines", engines=2),
    Setup("four engines", engines=4),
    Setup("two engines, two workers", engines=2, hosts=2),
    Setup("one engine, no asynchronous scheduling", arguments={"async_scheduling": False}),
    Setup("one engine, vLLM's capture sizes", arguments={"compilation_config": None}),
    Setup("one engine, no prefix caching", arguments={"enable_prefix_caching": False}),
    Setup("one engine, first model runner", environment={"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    Setup("one engine, another start"),
    Setup("one engine, outputs sent by token", hold_outputs=False),
)
"""In the order of their importance."""


NOTHING = Change()
CHANGES = (
    Change("no garbage collection in its core", collect=False),
    Change("its core on a CPU of its own", bound=True),
)
UPDATES = (
    Change("an update", update=True),
    Change("an update, 8192 tokens a step", step_tokens=8192, update=True),
    Change("an update, 2048 tokens a step", step_tokens=2048, update=True),
)


class Engines:
    """The running engines of a setup."""

    def __init__(self, setup: Setup, folder: Path, works: list[Work], tiny: bool) -> None:
        self.setup = setup
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for index in range(setup.hosts):
            here, there = context.Pipe()
            # Not daemons: they have processes of their own.
            process = context.Process(target=host, args=(there, setup, index, folder, works, tiny))
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def answers(self, seconds: float) -> list[Any]:
        """What each says next. Raises `RuntimeError` where one does not, or has ended."""
        until, answers = time.monotonic() + seconds, []
        for pipe in self._pipes:
            try:
                if not pipe.poll(max(0.0, until - time.monotonic())):
                    raise RuntimeError(f"{self.setup.name}: no answer in {seconds:.0f} s")
                answers.append(pipe.recv())
            except EOFError:
                raise RuntimeError(f"{self.setup.name}: an engine has ended; see above why") from None
        return answers

    def run(self, work: Work, change: Change) -> list[Ran]:
        """Have all do their parts of it at the same time."""
        for order in ((None, change), (work, change)):
            for pipe in self._pipes:
                pipe.send(order)
            answers = self.answers(RUN_SECONDS)
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except BrokenPipeError:
                continue  # it has ended
        for process in self._processes:
            process.join(_CLOSE_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


@dataclass
class Results:
    """Figures so far, written after each."""

    folder: Path
    file: str
    until: float
    rates: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """Tokens a second, by number of requests and case."""
    cores: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """Part of the time for which an engine core had the CPU."""

    def over(self) -> bool:
        """Whether the time for measuring is spent."""
        return time.monotonic() > self.until

    def measure(self, engines: Engines, work: Work, change: Change = NOTHING) -> None:
        """Measure once and write."""
        if self.over():
            return
        ran = engines.run(work, change)
        seconds = max(each.end for each in ran) - min(each.begin for each in ran)
        case = ", ".join(filter(None, (engines.setup.name, change.name)))
        rate = sum(each.tokens for each in ran) / seconds
        core = float(np.mean([each.core for each in ran])) / seconds
        front = sum(each.front for each in ran) / len(ran) / seconds
        spread = max(each.end for each in ran) - min(each.end for each in ran)
        print(
            f"{work.requests} requests, {case}: {rate:.0f} tokens/s, busy: engine core {core:.0%}, front end "
            f"{front:.0%}; the last worker ended {spread:.2f} s after the first",
            flush=True,
        )
        self.rates.setdefault((work.requests, case), []).append(rate)
        self.cores.setdefault((work.requests, case), []).append(core)
        self.write(show=False)

    def write(self, show: bool) -> None:
        figures = []
        for (requests, case), rates in self.rates.items():
            updated = next((each.name for each in UPDATES if each.name in case), None)
            base = ONE.name if updated is None else f"{ONE.name}, {UPDATES[0].name}"
            name, known = f"{requests} requests, {case}", self.rates.get((requests, base))
            figures.append(
                Figure(
                    f"{name}: tokens",
                    float(np.mean(rates)),
                    "tokens/s",
                    float(np.mean(known)) if known else None,
                )
            )
            busy = 100 * float(np.mean(self.cores[requests, case]))
            figures.append(Figure(f"{name}: an engine core's CPU", busy, "% of the time"))
        record(self.file, figures, self.folder, show=show)


@contextmanager
def started(setups: list[Setup], folder: Path, works: list[Work], tiny: bool) -> Iterator[list[Engines]]:
    """The engines of those of these setups that start; they start at the same time, and are warm."""
    with ExitStack() as stack:
        coming, running = [], []
        for setup in setups:
            coming.append(Engines(setup, folder, works, tiny))
            stack.callback(coming[-1].close)
        for engines in coming:
            try:
                for facts in itertools.chain(*engines.answers(_START_SECONDS)):
                    print(f"{engines.setup.name}: {facts}", flush=True)
                for work in works:
                    engines.run(Work(work.requests, 24, work.vocabulary), NOTHING)
            except RuntimeError as error:
                print(f"left out: {error}", flush=True)
            else:
                running.append(engines)
        yield running


def run(options: argparse.Namespace, folder: Path, vocabulary: int) -> None:
    name = "engines_per_accelerator" if options.tiny else "engines_per_accelerator_cuda"
    results = Results(options.out, name, time.monotonic() + options.seconds)
    works = [Work(requests, options.tokens, vocabulary) for requests in options.requests]
    left = [setup for setup in SETUPS if not options.setups or setup.name in options.setups]
    while left and not results.over():
        now, left = left[: options.together], left[options.together :]
        with started(now, folder, works, options.tiny) as running:
            # In both orders.
            for engines in running + running[::-1]:
                for work in works:
                    results.measure(engines, work)
            for engines in running:
                if engines.setup is ONE:
                    for change in CHANGES:
                        for work in works:
                            results.measure(engines, work, change)
                    for change in UPDATES:
                        results.measure(engines, works[0], change)
    results.write(show=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, on the CPU")
    parser.add_argument("--requests", type=int, nargs="*", help="in all; updates are measured with the first")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument(
        "--together", type=int, default=2, help="setups that are on the accelerator at a time"
    )
    parser.add_argument("--setups", nargs="*", help="only these, by name", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", Path(__file__).parent / "results"))
    )
    options = parser.parse_args()
    options.requests = options.requests or ([16, 4] if options.tiny else [512, 64])
    with tempfile.TemporaryDirectory() as scratch:
        begin = time.monotonic()
        vocabulary = write_model(Path(scratch), options.tiny)
        print(f"model made in {time.monotonic() - begin:.0f} s", flush=True)
        run(options, Path(scratch), vocabulary)


if __name__ == "__main__":
    main()
