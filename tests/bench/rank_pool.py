"""Processes that stay for many pieces of work, each a rank of one world.

Guarantees: one rank's failure ends the others at once, also where they wait for it in a collective call; the
next work then gets new processes. A rank that dies without a word, and ranks that take too long, count as
failed.
"""

import multiprocessing
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

_PRELOADED = ["transformers.modeling_utils", "rljob_runtime.trainer.rank"]


class RankPool:
    """`count` ranks; started with the first work."""

    def __init__(self, count: int) -> None:
        # What is preloaded may touch the GPU, such as flash-attn, and a fork could not use it then.
        self._context: Any = multiprocessing.get_context(
            "spawn" if torch.cuda.is_available() else "forkserver"
        )
        self._context.set_forkserver_preload(_PRELOADED)
        self._count = count
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._meetings = 0
        self._pipes: list[Any] = []
        self._processes: list[Any] = []

    def run(self, seconds: float, work: Callable[..., Any], *arguments: Any) -> list[Any] | str:
        """`work(rank, store, *arguments)` on each rank, where `store` is a new path to meet at; the results
        in order of rank, or what went wrong on the first rank that failed."""
        if not self._processes:
            self._start()
        self._meetings += 1
        store = Path(self._folder.name) / str(self._meetings)
        for pipe in self._pipes:
            pipe.send((work, store, arguments))
        found: dict[int, Any] = {}
        until = time.monotonic() + seconds
        while len(found) < self._count:
            missing: dict[Any, int] = {
                self._pipes[rank]: rank for rank in range(self._count) if rank not in found
            }
            ready: list[Any] = wait(list(missing), timeout=max(0.0, until - time.monotonic()))
            if not ready:
                self._end()
                return f"no result in {seconds:.0f} s"
            for pipe in ready:
                rank = missing[pipe]
                try:
                    done, found[rank] = pipe.recv()
                except EOFError:
                    self._processes[rank].join()
                    done, found[rank] = False, f"it ended with exit code {self._processes[rank].exitcode}"
                if not done:
                    self._end()
                    return f"rank {rank}: {found[rank]}"
        return [found[rank] for rank in range(self._count)]

    def close(self) -> None:
        """End the processes."""
        self._end()
        self._folder.cleanup()

    def _start(self) -> None:
        for rank in range(self._count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


def _serve(rank: int, pipe: Any) -> None:
    while True:
        try:
            work, store, arguments = pipe.recv()
        except EOFError:
            return
        try:
            outcome = True, work(rank, store, *arguments)
        # Told to the process that waits for it, whatever it is.
        except BaseException:  # noqa: BLE001
            outcome = False, traceback.format_exc()
        sys.stdout.flush()
        pipe.send(outcome)
