"""Ranks in processes that stay for many tests, and trainer steps on them with given plans."""

import faulthandler
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.runtime.rank_context import rank_context

_SECONDS = 250.0
"""For a rank's result, of which the first has to wait for the processes' start."""
_TELLING = 5.0
"""Seconds for a rank that gave none to write down what it is at."""


class RankFailed(AssertionError):
    """Work raised on ranks; the message has each one's traceback."""


class RankProcesses:
    """Processes that run work as the ranks of worlds of any size up to their number."""

    def __init__(self, count: int) -> None:
        self._context = rank_context()
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-test-")
        self._runs = 0
        # One more, for worlds of one rank: what they are compared with, which would make the first one forget
        # what it knows of the world before.
        self._pipes: list[Any] = [None] * (count + 1)
        self._processes: list[Any] = [None] * (count + 1)
        for index in range(count + 1):
            self._start(index)

    def run(self, world_size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`work(rank, world_size, store, *arguments)` on each rank; results in order of rank. Raises
        `RankFailed` where one raised or died."""
        outcomes = self.outcomes(world_size, work, *arguments)
        failed = [f"rank {rank}: {value}" for rank, (done, value) in enumerate(outcomes) if not done]
        if failed:
            raise RankFailed("\n".join(failed))
        return [value for _, value in outcomes]

    def outcomes(self, world_size: int, work: Callable[..., Any], *arguments: Any) -> list[tuple[bool, Any]]:
        """Like `run`, with what a rank raised, as text, in the place of its result: (False, text). A process
        that died is started again for the next work."""
        self._runs += 1
        store = Path(self._folder.name) / f"store-{self._runs}"
        indexes = range(world_size) if world_size > 1 else [len(self._pipes) - 1]
        for rank, index in enumerate(indexes):
            self._pipes[index].send((work, rank, world_size, store, arguments))
        return [self._receive(index) for index in indexes]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def _start(self, index: int) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._stacks(index)), daemon=True)
        process.start()
        theirs.close()
        self._pipes[index], self._processes[index] = ours, process

    def _receive(self, index: int) -> tuple[bool, Any]:
        pipe = self._pipes[index]
        if not pipe.poll(_SECONDS):
            was_at = self._asked_where(index)
            self._processes[index].kill()
            self._start(index)
            return False, f"no result in {_SECONDS:g} s; it was at\n{was_at}"
        try:
            done, value = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from a process of this test
        except EOFError:
            self._processes[index].join()
            self._start(index)
            return False, "the process died"
        return done, value

    def _stacks(self, index: int) -> Path:
        return Path(self._folder.name) / f"stacks-{index}"

    def _asked_where(self, index: int) -> str:
        """What a rank's threads are at. Its own handler writes that, also where Python waits for a device."""
        stacks, until = self._stacks(index), time.monotonic() + _TELLING
        with suppress(ProcessLookupError):
            os.kill(self._processes[index].pid, signal.SIGUSR1)
        before = ""
        while time.monotonic() < until:
            time.sleep(0.1)
            # Line by line: it is whole once no more comes.
            text = stacks.read_text()
            if text and text == before:
                break
            before = text
        return before


def _serve(pipe: Any, stacks: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1, stacks.open("w"))
    before = None
    while (task := pipe.recv()) is not None:
        work, rank, world_size, store, arguments = task
        made = work, world_size, [getattr(each, "groups", each) for each in arguments]
        if made != before:
            # What torch knows of operators names groups of ranks, and where others are made, or in another
            # order, these are the names of other ones.
            _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
            before = made
        try:
            outcome = pickle.dumps((True, work(rank, world_size, store, *arguments)))
        except (Exception, SystemExit):  # noqa: BLE001 - told to the test, whatever it is
            outcome = pickle.dumps((False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        pipe.send_bytes(outcome)
