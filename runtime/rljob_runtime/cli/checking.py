"""A manifest whose fields are valid, checked in a process of its own.

What the check imports and tries, torch and the job's functions among it, the driver does not need: in another
process it takes place while Ray starts, and takes no memory of the driver's afterwards. For the same reason
that process makes a random model, once it is told where.

Guarantees: the process ends with this one, however that ends, and with the context that it was started in;
neither leaves the other waiting.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from rljob_runtime.cli.verdict import Verdict, broken_by, decode, encode, without_answer
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.manifest.load import Finding, Manifest
from rljob_runtime.site.stop_signals import stop_signals

_END_SECONDS = 3.0
"""How long the process may take to end what it has started, when it is no longer needed."""


class CheckDied(RuntimeError):
    """The process that checks ended without an answer; the message is for people."""


@dataclass(frozen=True)
class Asked:
    """What is to be checked."""

    manifest: Manifest
    folder: Path
    """The run's; it need not exist."""
    share: bool
    """Whether workers may share accelerators."""
    memory: int
    """Bytes that were free before anything was started."""
    resumes: bool = False
    """Whether a run in the folder goes on."""
    makes_model: bool = False
    """Whether the process makes the job's random model afterwards, if nothing is wrong."""


class Check:
    """A check that is under way."""

    def __init__(self, process: ForkProcess, answers: Connection, makes_model: bool) -> None:
        self._process = process
        self._answers = answers
        self._makes_model = makes_model

    def verdict(self) -> Verdict:
        """Wait for the answer, or for the end of the process without one. Raises `CheckDied`, and
        `KeyboardInterrupt` where the process was interrupted."""
        wait([self._answers, self._process.sentinel])
        with suppress(EOFError, OSError):
            # A process that has ended may have answered before.
            if self._answers.poll():
                answer = decode(self._answers.recv_bytes())
                if not self._makes_model:
                    # It has nothing more to do.
                    self._process.join(_END_SECONDS)
                return answer
        self._process.join()
        if self._process.exitcode == ExitCode.STOPPED:
            raise KeyboardInterrupt
        raise CheckDied(without_answer(self._process.exitcode))

    def make_model(self, folder: Path) -> None:
        """Have the process make the job's model in `folder`, if it was asked to."""
        if self._makes_model:
            with suppress(OSError):  # it has ended
                self._answers.send_bytes(os.fsencode(folder))

    def model_made(self) -> None:
        """After `make_model`: wait until the process has made it, or has failed to, which leaves no such
        folder."""
        if self._makes_model:
            self._process.join()

    def end(self) -> None:
        """End the process, if it has not ended."""
        try:
            if self._process.exitcode is None:
                self._process.terminate()
                self._process.join(_END_SECONDS)
        finally:
            if self._process.exitcode is None:
                self._process.kill()
                self._process.join()
            self._answers.close()


@contextmanager
def checking(asked: Asked) -> Iterator[Check]:
    """Check it beside the body. The process is forked: this one must have no other thread yet."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(asked, ours, theirs, os.getpid()), name="check")
    process.start()
    check = Check(process, ours, asked.makes_model)
    try:
        # Else its end would not be seen on ours.
        theirs.close()
        yield check
    finally:
        check.end()


def examine(asked: Asked) -> Verdict:
    """What is wrong with what the manifest refers to; where that is nothing, whether it fits this machine."""
    warnings: list[str] = []
    try:
        from rljob_runtime.manifest.checks import check

        errors, doubts = check(asked.manifest)
        warnings += map(str, doubts)
        errors = errors or [*_check_resume(asked), *_check_machine(asked)]
        unusable = None if errors else _unusable(asked, warnings)
    except Exception as error:  # noqa: BLE001 - told by the process that asked
        return broken_by(error, warnings, time.time())
    return Verdict(time.time(), tuple(errors), tuple(warnings), unusable)


def _check_resume(asked: Asked) -> list[Finding]:
    """Why the run in the folder cannot go on with the model that the job asks for."""
    if not asked.resumes:
        return []
    from rljob_runtime.driver.resumed_model import model_problems
    from rljob_runtime.trainer.checkpoint import CheckpointError

    manifest = asked.manifest
    try:
        found = model_problems(manifest.job, asked.folder.absolute(), manifest.folder)
    except CheckpointError:
        # It is no error of the manifest: `_unusable` tells it.
        return []
    return [manifest.find(each) for each in found]


def _unusable(asked: Asked, warnings: list[str]) -> str | None:
    """Why the newest checkpoint of the run that goes on cannot be loaded, which its trainer would find
    minutes later. A run without any is warned of: it may have been stopped before the first, or have lost
    them."""
    if not asked.resumes:
        return None
    from rljob_runtime.driver.model_folder import CHECKPOINTS, checkpoint_root
    from rljob_runtime.driver.resume import read_saved
    from rljob_runtime.trainer.checkpoint import CheckpointError, CheckpointUnreadable
    from rljob_runtime.trainer.checkpoint_tensors import check_whole

    manifest, folder = asked.manifest, asked.folder.absolute()
    root = checkpoint_root(manifest.job, folder, manifest.folder)
    try:
        if (saved := read_saved(root)) is not None:
            check_whole(saved.folder)
        # Where they are elsewhere the job is refused.
        elif read_saved(folder / CHECKPOINTS) is None:
            warnings.append(
                f"{root} has no checkpoint: the run begins again with step 1, and what it has recorded of "
                "its steps is replaced"
            )
    except CheckpointUnreadable as error:
        return str(error)
    except CheckpointError:
        # Which checkpoint is the newest cannot be told: the job is refused for that.
        pass
    return None


def _check_machine(asked: Asked) -> list[Finding]:
    """Why the job does not fit this machine."""
    from rljob_runtime.driver.model_folder import CHECKPOINTS, checkpoint_root
    from rljob_runtime.manifest.adapters import model_size
    from rljob_runtime.manifest.checks import model_parameters
    from rljob_runtime.manifest.preflight import measure, preflight
    from rljob_runtime.trainer.checkpoint import sizes

    manifest = asked.manifest
    job = manifest.job
    folder = asked.folder.absolute()
    checkpoints = checkpoint_root(job, folder, manifest.folder)
    # Those of a run that a new one takes the place of stay, in a folder of another name.
    saved, left_over = sizes(checkpoints) if asked.resumes else ([], 0)
    if not asked.resumes and checkpoints == folder / CHECKPOINTS:
        # What has that name in it is the earlier run's, and may lead to another disk.
        checkpoints = folder
    machine = measure(job, checkpoints, asked.memory, asked.share, saved, left_over)
    size = model_size(job, manifest.folder, model_parameters(job, manifest.folder))
    found = preflight(job, size, machine)
    return [manifest.find(each) for each in found]


def _make_model(asked: Asked, orders: Connection) -> None:
    """Make the job's random model where the other process says, or nothing where it has gone."""
    from rljob_runtime.data.tokenizer import build_tokenizer
    from rljob_runtime.driver.model_folder import import_makers, make_initial_model

    import_makers()
    with suppress(EOFError):
        folder = Path(os.fsdecode(orders.recv_bytes()))
        job = asked.manifest.job
        tokenizer = build_tokenizer(job.spec.training.tokenizer, asked.manifest.folder, None)
        make_initial_model(job, folder, tokenizer)


def _answer(asked: Asked, parents: Connection, answers: Connection, parent: int) -> None:
    """What the forked process does, to its end."""
    from rljob_runtime.rewards.guard import die_with

    # Else the end of the other process would not be seen.
    parents.close()
    try:
        for number in stop_signals():
            signal.signal(number, _interrupt)
        die_with(parent, signal.SIGTERM)
        code = ExitCode.DONE
        verdict = examine(asked)
        makes = asked.makes_model and verdict.broken is None and not verdict.errors
        if makes:
            # A terminal's Ctrl-C is the other process's to answer from here on: it ends this one, or waits
            # for what it makes.
            signal.signal(signal.SIGINT, lambda *_: None)
        answers.send_bytes(encode(verdict))
        if makes:
            _make_model(asked, answers)
    except KeyboardInterrupt:
        code = ExitCode.STOPPED
    except Exception:  # noqa: BLE001 - the driver, which makes the model then, says why that does not work
        code = ExitCode.FAILED
    _ignore_signals()
    # Threads that the job's functions have started are not waited for.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _interrupt(*_: object) -> None:
    """Once, by an exception, so that what was started for the check is ended: a terminal's Ctrl-C comes to
    both processes, and then the other one ends this."""
    _ignore_signals()
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    for number in stop_signals():
        # Not SIG_IGN, of which Python complains where a signal is on its way.
        signal.signal(number, lambda *_: None)
