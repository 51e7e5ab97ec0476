"""Runs tiers, and shows the output of one after the other, also of those that run at the same time."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tools.tiers.results import Counts, Result, counts_of, document, judge, overall, summary
from tools.tiers.stages import Stage, Tier, tiers

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "tiers"
"""What the last run reported: a JUnit file for each tier, and a summary."""
SUMMARY = FOLDER / "test.json"
"""The summary of the last `make test`."""
MAKE = ("make", "--no-print-directory")
YIELD = ("nice", "-n", "10")
"""A tenth of what others have of a core that is wanted by all: tests with deadlines still meet them."""


class Running:
    """One tier, before, while and after it runs."""

    def __init__(self, tier: Tier, make: Sequence[str]) -> None:
        self.tier, self._make = tier, make
        self.junit = FOLDER / f"{tier.name}.xml"
        self.lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """What it prints; None at the end."""
        self.code = -1
        self.seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Runs the tier to its end."""
        began = time.monotonic()
        try:
            # An earlier run's file would be taken for the result of a tier that ends before it writes one.
            self.junit.unlink(missing_ok=True)
            options = f"{os.environ.get('PYTEST_ADDOPTS', '')} --junitxml={self.junit}"
            with subprocess.Popen(
                [*(YIELD if self.tier.yields else ()), *self._make, self.tier.target],
                cwd=ROOT,
                env={**os.environ, "PYTEST_ADDOPTS": options.strip()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as process:
                self._process = process
                assert process.stdout
                # read1 gives what is there; `read` would wait until its buffer is full.
                while part := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                    self.lines.put(part)
            self.code = process.returncode
        finally:
            self.seconds = time.monotonic() - began
            self.lines.put(None)

    def end(self) -> None:
        """Ends the tier, if it runs."""
        if self._process and self._process.poll() is None:
            self._process.terminate()

    def show(self, out: IO[bytes]) -> None:
        """Prints what the tier prints, until it has ended."""
        while (part := self.lines.get()) is not None:
            out.write(part)
            out.flush()

    def result(self, may_skip: bool) -> Result:
        """What it gave, once it has ended."""
        return judge(self.tier.name, self.code, self.seconds, self._counts(), may_skip=may_skip)

    def _counts(self) -> Counts | None:
        try:
            return counts_of(self.junit.read_text())
        except (FileNotFoundError, xml.ParseError):  # it has no tests, or was ended while it wrote
            return None


def run(stages: tuple[Stage, ...], told: Path, make: Sequence[str] = MAKE) -> int:
    """Runs all stages, also after a failure; prints the summary and writes it to `told`, as JSON. The exit
    code: 0 or 1."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    told.unlink(missing_ok=True)
    # Told to end, it ends what runs: an exception passes the `finally` of `_run_stage`.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    began = time.monotonic()
    wait_built = _build_beside(make) if any(tier.built for tier in tiers(stages)) else lambda: None
    results = [result for stage in stages for result in _run_stage(stage, make, wait_built)]
    seconds = time.monotonic() - began
    told.write_text(json.dumps(document(results, seconds), indent=2) + "\n")
    print(f"\n{summary(results, seconds)}", flush=True)
    return 0 if overall(results) == "passed" else 1


def _run_stage(stage: Stage, make: Sequence[str], wait_built: Callable[[], None]) -> list[Result]:
    """Runs a stage's lanes at the same time; the results in the order of its tiers."""
    lanes = [[Running(tier, make) for tier in lane] for lane in stage]
    every = [each for lane in lanes for each in lane]
    # Each lane in a thread, and only this one prints: what others print meanwhile waits in their queues.
    for lane in lanes:
        threading.Thread(target=_run_lane, args=(lane, wait_built), daemon=True).start()
    results = []
    try:
        for each in every:
            print(f"\n== {each.tier.name} (make {each.tier.target})", flush=True)
            each.show(sys.stdout.buffer)
            results.append(each.result(may_skip=not os.environ.get("CI")))
    finally:
        # Also after Ctrl-C or SIGTERM: no tier outlives this process.
        for each in every:
            each.end()
    return results


def _run_lane(lane: Sequence[Running], wait_built: Callable[[], None]) -> None:
    for each in lane:
        if each.tier.built:
            wait_built()
        each.run()


def _build_beside(make: Sequence[str]) -> Callable[[], None]:
    """Starts to build what the later tiers need, beside those that need nothing of it; a wait for its end.
    What could not be built, these tiers tell themselves."""
    print(
        "what later tiers need is built beside the first ones: .cache/prebuild.log tells how far", flush=True
    )
    quiet = subprocess.DEVNULL
    building = subprocess.Popen([*make, "prebuild"], cwd=ROOT, stdin=quiet, stdout=quiet, stderr=quiet)
    lock = threading.Lock()

    def wait() -> None:
        with lock:
            building.wait()

    return wait
