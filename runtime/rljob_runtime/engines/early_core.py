"""The process of vLLM's engine core, begun before vLLM asks for it: it imports vLLM while its host does.

Guarantees: what vLLM starts in it is what it would have started in a new process, with the environment, and
the standard output and error, that the host has by then; a process that vLLM never asked for ends with
`close`, or with its host. What ended the core is told to its host (`last_words.py`), for vLLM itself tells no
more than that it ended.

By itself a host imports vLLM, and then starts a new Python that imports it again.
"""

import importlib
import multiprocessing
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from rljob_runtime.engines.core_start import boot_ends
from rljob_runtime.engines.last_words import Workers, signal_name, tell, telling
from rljob_runtime.site.large_imports import large_imports

_WORKERS = {"cpu": "vllm.v1.worker.cpu_worker", "nvidia": "vllm.v1.worker.gpu_worker"}
"""By accelerator, the module of vLLM's worker."""
_CLOCK_STEP = 0.02
"""Seconds. The system tells the time of a process's making in hundredths, from which more is rounded off."""
_STANDARD = (1, 2)
"""Descriptors of standard output and error."""
_END_SECONDS = 2.0
"""How long a process that hears nothing any more is given to end."""
_OFFERED: ContextVar["EarlyCore | None"] = ContextVar("offered", default=None)
_begun: list["EarlyCore"] = []
"""Those of this process that `begin` has begun and nobody has taken."""


class EarlyCore:
    """A process that imports what an engine core needs, and waits for what it is to run."""

    def __init__(self, accelerator: str, context: BaseContext | None = None) -> None:
        """Begins it, with the environment of now; `context` is how: by default a new Python, as the host's
        threads forbid to fork it."""
        context = context or multiprocessing.get_context("spawn")
        # Both ways, as descriptors go through sockets alone.
        orders, self._orders = context.Pipe()
        self._said, saying = context.Pipe(duplex=False)
        make: Any = context  # of all contexts; typeshed has it at each of them
        self.process: BaseProcess = make.Process(
            target=_run_when_told, args=(orders, saying, _imported(accelerator)), name="EngineCore"
        )
        self.begun = time.time() - _CLOCK_STEP
        """In seconds since the epoch; not after the time that the system tells of its making."""
        self.process.start()
        # Its ends of the pipes are copies: each side is to see the other one's end.
        orders.close()
        saying.close()
        # Also where the host ends by itself: `multiprocessing` would wait for it.
        self._close = weakref.finalize(self, _end, self.process, self._orders)

    def run(self, target: Callable[..., None], arguments: Mapping[str, Any]) -> None:
        """Have it run `target`, once. Raises `RuntimeError` where it has ended by itself."""
        self._close.detach()
        try:
            # First: what keeps it from taking the order is logged where its host logs.
            for standard in _STANDARD:
                reduction.send_handle(self._orders, standard, self.process.pid)
            self._orders.send((dict(os.environ), target, arguments))
        except (BrokenPipeError, ConnectionResetError):
            self.process.join(_END_SECONDS)
            code = self.process.exitcode or 0
            how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            raise RuntimeError(
                f"the process of its engine core {how} before it was told what to run"
            ) from None
        finally:
            self._orders.close()

    def close(self) -> None:
        """End it where it runs nothing yet."""
        self._close()

    def last_words(self, patience: float = 0.0) -> str:
        """What was raised in it and ended it, in one line, or in a worker of it that did not start; "" where
        nothing was, as in a process that was killed, and where it goes on. Waits for at most `patience`
        seconds."""
        try:
            return self._said.recv_bytes().decode() if self._said.poll(patience) else ""
        except (EOFError, OSError):
            return ""

    @contextmanager
    def offered(self) -> Iterator[None]:
        """In the body, and its thread, vLLM starts its engine core in this process."""
        # Here, as vLLM is imported once its environment is set.
        from vllm.v1.engine import utils

        engine_utils: Any = utils
        if not isinstance(engine_utils.get_mp_context, _Offers):
            engine_utils.get_mp_context = _Offers(engine_utils.get_mp_context)
        token = _OFFERED.set(self)
        try:
            yield
        finally:
            _OFFERED.reset(token)


def begin(accelerator: str) -> None:
    """Begin one for the engine that this process will have."""
    _begun.append(EarlyCore(accelerator))


def take(accelerator: str) -> EarlyCore:
    """The one that was begun, if nobody has taken it; a new one otherwise."""
    return _begun.pop() if _begun else EarlyCore(accelerator)


class _Offers:
    """vLLM's `get_mp_context`, but for whom a process is offered."""

    def __init__(self, original: Callable[[], BaseContext]) -> None:
        self._original = original

    def __call__(self) -> Any:
        early = _OFFERED.get()
        return self._original() if early is None else _Context(early)


class _Context:
    """What vLLM uses of a context of `multiprocessing`."""

    def __init__(self, early: EarlyCore) -> None:
        self._early = early

    def Process(self, target: Callable[..., None], name: str, kwargs: Mapping[str, Any]) -> "_Process":
        return _Process(self._early, target, kwargs)


class _Process:
    """To vLLM a process that it makes and then starts; all but its start is the early one's."""

    def __init__(self, early: EarlyCore, target: Callable[..., None], arguments: Mapping[str, Any]) -> None:
        self._early = early
        self._work = target, arguments

    def start(self) -> None:
        self._early.run(*self._work)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._early.process, name)


def _imported(accelerator: str) -> Sequence[str]:
    """What an engine core imports in any case. The first one watches the host."""
    worker = (_WORKERS[accelerator],) if accelerator in _WORKERS else ()
    return ("rljob_runtime.engines.vllm_extension", "vllm.v1.engine.core", *worker)


def _run_when_told(
    orders: "Connection[Any, Any]", saying: "Connection[Any, Any]", modules: Sequence[str]
) -> None:
    _find_own_name()
    with large_imports():
        for module in modules:
            # Only ahead of its time: where it is needed, what keeps it from being imported is told.
            with suppress(Exception):
                importlib.import_module(module)
    boot_ends()
    try:
        for standard in _STANDARD:
            descriptor = reduction.recv_handle(orders)
            os.dup2(descriptor, standard)
            os.close(descriptor)
        environment, target, arguments = orders.recv()
    except EOFError:
        return
    except Exception as error:
        # What it is to run cannot be imported.
        tell(saying, error)
        raise
    orders.close()
    os.environ.clear()
    os.environ.update(environment)
    telling(target, saying, Workers(saying).killed)(**arguments)


def _find_own_name() -> None:
    """Let vLLM change this process's name later: where that lies is found by the first variables of the
    environment, before any of them has changed."""
    with suppress(ImportError):
        import setproctitle

        setproctitle.getproctitle()


def _end(process: BaseProcess, orders: "Connection[Any, Any]") -> None:
    orders.close()
    process.kill()
    process.join()
