"""Calls that all ranks of the trainer make together, and what is told where one of them ends.

Guarantees: when one rank dies or fails, or does not answer in time, the call raises `TrainerDied` (or the
error that asks a person, such as a full disk) and all ranks are ended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api import RLJob
from rljob_runtime.devices import DeviceMissing
from rljob_runtime.driver.device_memory import no_memory_left
from rljob_runtime.driver.rank_end import complaint, how_it_ended
from rljob_runtime.driver.rank_failures import first_cause
from rljob_runtime.job_errors import OwnFunctionFailed, RewardsUnfit, TrainingDiverged, UnsupportedModel
from rljob_runtime.own_functions import FunctionLoadError
from rljob_runtime.parallel.micro_batches import SampleTooLong
from rljob_runtime.site.process_log import last_lines, log_file
from rljob_runtime.trainer.checkpoint import CheckpointError
from rljob_runtime.weights.shm import NoRoom

_FOR_PEOPLE = (
    CheckpointError, DeviceMissing, FunctionLoadError, NoRoom, OwnFunctionFailed, RewardsUnfit, SampleTooLong,
    TrainingDiverged, UnsupportedModel,
)  # fmt: skip
"""Errors that end the job with their own words: ranks that are started again would only meet them again."""
_MOST_LINE = 300
"""Characters of a line of a rank's log in a message."""


@dataclass(frozen=True)
class Deadline:
    """How long a call of the ranks may take."""

    seconds: float
    field: str | None = None
    """The field of spec.training.timeouts that sets it; None where it is fixed."""

    def __str__(self) -> str:
        """ "1800 s (spec.training.timeouts.startSeconds)"."""
        where = "" if self.field is None else f" (spec.training.timeouts.{self.field})"
        return f"{self.seconds:g} s{where}"


class TrainerDied(RuntimeError):
    """A rank of the trainer is gone, or failed; the message says which and why."""


class _RankDied(Exception):
    """The process of this rank is gone."""

    def __init__(self, rank: int, said: str) -> None:
        """`said`: what Ray says of it."""
        self.rank = rank
        self.said = said


def name_of(rank: int) -> str:
    """By which its log and its events are known."""
    return f"trainer-{rank}"


async def _answer(rank: int, call: Awaitable[Any]) -> Any:
    """What a rank answers. Raises `_RankDied`, and what it raised."""
    from ray.exceptions import RayActorError

    try:
        return await call
    except RayActorError as error:
        raise _RankDied(rank, str(error)) from error


class RankCalls:
    """See the module's guarantees."""

    def __init__(self, job: RLJob, sharing: bool, logs: Path | None, on_end: Callable[[], None]) -> None:
        """`sharing`: whether ranks share accelerators with engines; `logs`: the run's folder, where ranks log
        on one machine, None in a cluster; `on_end`: whom to tell that the ranks are ended."""
        self.ranks: list[Any] = []
        """Actors, in order of rank; none while the trainer is stopped."""
        self._job = job
        self._sharing = sharing
        self._logs = logs
        self._on_end = on_end

    async def call(
        self, method: str, *arguments: Any, deadline: Deadline, ranks: Any = None, group: str | None = None
    ) -> list[Any]:
        """Call `method` on all ranks; the results in order of rank. `group`: of Ray's, None for the one in
        which one call follows the other."""
        from ray.exceptions import RayError, RayTaskError

        if not self.ranks:
            raise TrainerDied(f"the trainer is stopped, and was asked for {method}")
        started = self.ranks
        called = ranks or started
        methods = [getattr(rank, method) for rank in called]
        if group is not None:
            methods = [each.options(concurrency_group=group) for each in methods]
        calls = [
            asyncio.ensure_future(_answer(started.index(rank), each.remote(*arguments)))
            for rank, each in zip(called, methods, strict=True)
        ]
        try:
            async with asyncio.timeout(deadline.seconds):
                return list(await asyncio.gather(*calls))
        # After any failure all ranks are ended: the others may stand in a collective operation that this one
        # never joins.
        except (RayTaskError, _RankDied) as error:
            try:
                # Before that: the one that it comes of has yet to tell.
                cause = await first_cause(error, calls)
            finally:
                self._lose(started)
            if isinstance(cause, RayTaskError) and isinstance(cause.cause, _FOR_PEOPLE):
                raise cause.cause from None
            raise TrainerDied(self._ended(method, cause)) from cause
        except TimeoutError as error:
            self._lose(started)
            raise TrainerDied(f"the trainer's {method} took longer than {deadline}") from error
        except RayError as error:
            self._lose(started)
            raise TrainerDied(self._ended(method, error)) from error

    def end(self) -> None:
        """End all ranks at once."""
        import ray

        for rank in self.ranks:
            # Ends the process at once, whatever it is at.
            ray.kill(rank)
        self.ranks = []
        self._on_end()

    def _ended(self, method: str, cause: BaseException) -> str:
        """What ended a call of the ranks, in one line."""
        from ray.exceptions import RayTaskError

        if isinstance(cause, _RankDied):
            return f"a process of the trainer died (rank {cause.rank}){self._last_words(cause)}"
        if isinstance(cause, RayTaskError):
            return f"the trainer failed at {method}: {self._why(cause.cause)}"
        return f"the trainer did not answer {method}: {type(cause).__name__}"

    def _lose(self, started: Sequence[Any]) -> None:
        """End these ranks, which were started together, unless others have taken their place by now: calls
        that ran beside the one that told of a loss fail later than that one."""
        if self.ranks is started:
            self.end()

    def _last_words(self, died: _RankDied) -> str:
        """How the process of a rank ended, and on one machine where its log is, and what that ends with."""
        file = None if self._logs is None else log_file(self._logs, name_of(died.rank))
        log = [] if file is None else last_lines(file)
        how = how_it_ended(died.said, log)
        told = f": {how}" if how else ""
        if log:
            words = complaint(log)[:_MOST_LINE]
            told += f"; its log, {file}, ends with: {words}" if words else f"; its log is {file}"
        return told

    def _why(self, cause: BaseException) -> str:
        """What a rank raised, in one line."""
        text = str(cause).strip()
        # By its name: the driver has no other use for torch.
        if type(cause).__name__ == "OutOfMemoryError":
            return no_memory_left(self._job, text, self._sharing)
        # HCCL's begins with what failed, and ends with a report of the device.
        line = 0 if "HCCL" in text else -1
        return f"{type(cause).__name__}: {(text.splitlines() or [''])[line]}"
