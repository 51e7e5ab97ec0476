"""NVIDIA's Multi-Process Service (MPS), for workers that share a GPU.

Without it a GPU runs the kernels of one process at a time, in turns, and a trainer beside an engine takes
twice as long. With it kernels of several processes run at once.

Guarantees: a service of the job's own, which ends with this process, however that ends. Where it cannot be
had, workers take turns, and whoever asked for it is told why.
"""

import logging
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_SAID = "start.log"
"""What the program says when it is started, in the service's folder."""
_PATIENCE = 5
"""Seconds that the program gives the processes that use a GPU through it to end: the job's have been ended,
but one may still be on its way out. By itself it waits for as long as that takes."""
_KEEPER = f"""
{_PROGRAM} -d > "$1/{_SAID}" 2>&1 || exit 1
echo started
read -r _
echo quit -t {_PATIENCE} | {_PROGRAM}
# For a release that does not know that; it finds nothing where the service has ended.
echo quit | {_PROGRAM} > /dev/null 2>&1
rm -rf "$1"
"""
"""A shell that starts the service in its folder, says so, and ends it once nobody holds the other end of the
shell's input any more: that is also when this process was killed."""
_SECONDS = 20.0
"""For the service to start, and for it to end."""

log = logging.getLogger(__name__)


@contextmanager
def kernels_at_once(environment: MutableMapping[str, str] = os.environ) -> Iterator[str | None]:
    """What is started meanwhile, with this environment, shares GPUs by MPS. Yields None, or in a line why it
    does not: the program is missing, or does not start. A service that the environment names already is left
    as it is."""
    if _PIPES in environment:
        yield None
        return
    if shutil.which(_PROGRAM, path=environment.get("PATH")) is None:
        yield f"{_PROGRAM} is not there: workers that share a GPU take turns"
        return
    # Below the system's folder for temporary files, because a socket's path may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="rljob-mps-"))
    given = {name: str(folder) for name in (_PIPES, _LOGS) if name not in environment}
    keeper = _start(folder, {**environment, **given})
    try:
        if isinstance(keeper, str):
            yield keeper
        else:
            environment.update(given)
            yield None
    finally:
        if not isinstance(keeper, str):
            for name in given:
                del environment[name]
            _end(keeper)
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | str":
    """What keeps the service, or why there is none."""
    # Devices are counted among those that the service sees: all, so that their numbers stay what they are.
    seen = {name: value for name, value in environment.items() if name != "CUDA_VISIBLE_DEVICES"}
    keeper = subprocess.Popen(
        ["sh", "-c", _KEEPER, "sh", str(folder)], env=seen, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert keeper.stdout is not None
    if _line(keeper.stdout.fileno()) == b"started\n":
        return keeper
    _end(keeper)
    said = folder / _SAID
    why = said.read_text(errors="replace").strip() if said.exists() else ""
    return f"{_PROGRAM} does not start: workers that share a GPU take turns ({why or 'no reason'})"


def _line(descriptor: int) -> bytes:
    """What comes first, within the time for a start."""
    # Not `select`, which takes no descriptor above 1,023.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return os.read(descriptor, 64) if poll.poll(1000 * _SECONDS) else b""


def _end(keeper: "subprocess.Popen[bytes]") -> None:
    assert keeper.stdin is not None and keeper.stdout is not None
    keeper.stdin.close()
    try:
        keeper.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        log.warning("%s has not ended after %.0f s", _PROGRAM, _SECONDS)
        keeper.kill()
        keeper.wait()
    keeper.stdout.close()
