"""What was raised in vLLM's engine core, or in a worker of it that was to start, told to the engine's host.

A tensor-parallel engine has a worker process for each rank. Of one that does not start vLLM logs what was
raised, and its engine core raises no more than that there was something.

Guarantees: the process in which something is raised first tells first; workers start and end as vLLM has them
do, and a version of vLLM that starts them in another way is left as it is. A core that was killed tells
nothing; which of its workers were killed it tells itself.
"""

import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial, wraps
from multiprocessing import current_process
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from signal import SIGTERM, Signals
from typing import Any

_MOST_WORDS = 600
"""Characters: few enough for a pipe to take them as a whole, whoever else tells at this moment."""
_EXECUTOR = "vllm.v1.executor.multiproc_executor"
"""vLLM's module that starts workers. An engine core that is to have none does not import it."""
_WORKER = "WorkerProc"
"""Its class, in the process of a worker, whose constructor is the start."""


def telling(
    call: Callable[..., None], saying: "Connection[Any, Any]", where: Callable[[], str] = str
) -> Callable[..., None]:
    """`call`, which tells through `saying` what is raised in it, and what `where` adds to that."""

    @wraps(call)
    def told(*arguments: Any, **options: Any) -> None:
        try:
            call(*arguments, **options)
        except Exception as error:
            tell(saying, error, where())
            raise

    return told


def tell(saying: "Connection[Any, Any]", error: Exception, where: str = "") -> None:
    """Tell what was raised in this process, and where."""
    words = " ".join(filter(None, (in_one_line(error), where)))
    saying.send_bytes(words.encode(errors="replace"))


class Workers:
    """Those that this process, an engine core, starts from now on: each tells through `saying` what kept it
    from starting."""

    def __init__(self, saying: "Connection[Any, Any]") -> None:
        self._saying = saying
        self._started: list[BaseProcess] = []
        executor: Any = sys.modules.get(_EXECUTOR)
        # By this vLLM makes the processes.
        if executor is not None and hasattr(executor, "get_mp_context"):
            original = executor.get_mp_context
            executor.get_mp_context = lambda: _Context(original(), self._process)

    def killed(self) -> str:
        """Which of them were ended by a signal that is not how vLLM ends them, in brackets."""
        codes = {process.name: -(process.exitcode or 0) for process in self._started}
        found = [
            f"{name} was ended by {signal_name(code)}"
            for name, code in codes.items()
            if code > 0 and code != SIGTERM
        ]
        return f"({', '.join(found)})" if found else ""

    def _process(
        self, context: Any, target: Callable[..., None], kwargs: Mapping[str, Any], **options: Any
    ) -> BaseProcess:
        process: BaseProcess = context.Process(
            target=_work, args=(self._saying, target), kwargs=kwargs, **options
        )
        self._started.append(process)
        return process


def in_one_line(error: Exception) -> str:
    """An error with its type, clipped; one without words, such as an assertion's, with its place."""
    words = " ".join(str(error).split())
    if not words and (frames := traceback.extract_tb(error.__traceback__)):
        words = f"at {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}"
    words = f"{type(error).__name__}: {words}".removesuffix(": ")
    return words if len(words) <= _MOST_WORDS else words[:_MOST_WORDS] + " …"


class _Context:
    """A context of `multiprocessing`; all but its processes is the original's."""

    def __init__(self, original: BaseContext, process: Callable[..., BaseProcess]) -> None:
        self._original = original
        self._process = process

    def Process(self, **options: Any) -> BaseProcess:
        return self._process(self._original, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def signal_name(number: int) -> str:
    return Signals(number).name if number in set(Signals) else f"signal {number}"


def _work(saying: "Connection[Any, Any]", target: Callable[..., None], /, **arguments: Any) -> None:
    """Run vLLM's `target` in the process of a worker."""
    where = partial(str, f"(in {current_process().name})")
    worker: Any = getattr(sys.modules[target.__module__], _WORKER, None)
    if worker is not None:
        # `target` logs what is raised there, and passes none of it on.
        worker.__init__ = telling(worker.__init__, saying, where)
    telling(target, saying, where)(**arguments)
