"""What every peer's run has in common: what differs from run to run, and a command whose output tells of its
steps.

A run ends by itself or at its deadline, and no process of it stays.
"""

import argparse
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from transformers.utils import is_flash_attn_2_available

from tests.bench.peers.rates import Ended

HERE = Path(__file__).parent
ALONE = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables of the environment that keep a peer from asking the network, and its lines from coming late."""
_EXTENSION = "flash_attn_2_cuda"
"""The module of flash-attn's that has its kernels."""
_FLASH = (
    "FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE pip install --no-deps --no-build-isolation --no-binary flash-attn "
    "flash-attn==2.8.3"
)
"""Installs its Python files alone. There is no wheel for some torches, and kernels take long to compile."""
_ENDING = 15.0
"""Seconds for a peer's processes to end after SIGTERM."""


@dataclass(frozen=True)
class Settings:
    """What differs from run to run."""

    mode: str
    """Which of a peer's trainers."""
    gpus: int
    micro_batch: int
    """Tokens of a forward pass."""
    attention: str
    """As transformers calls it."""
    staleness: float = 1.0
    """What a fully asynchronous trainer calls its threshold."""


def installed(package: str) -> str | None:
    """The version of a package that is installed, if any."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_installed(parser: argparse.ArgumentParser, package: str, wanted: str) -> None:
    """End the command where a peer's package is not installed, and say what to do. `wanted`: as pip takes
    it."""
    if find_spec(package) is None:
        parser.error(
            f"--contenders: there is no package {package!r} here; `pip install {wanted}`, or name contenders "
            "that do without"
        )


def check_attention(parser: argparse.ArgumentParser, attention: str) -> None:
    """End the command where the peers' attention is not installed, and say what to do."""
    if attention == "flash_attention_2" and not is_flash_attn_2_available():
        parser.error(
            f"--attention flash_attention_2: transformers finds no flash-attn; `{_FLASH}` installs it "
            "without kernels, in whose place are torch's (tests/bench/peers/kernels); or say --attention sdpa"
        )


def offer_kernels() -> None:
    """Have what is started from now on find `kernels/` where flash-attn was installed without its own."""
    if find_spec(_EXTENSION) is None:
        paths = [os.environ.get("PYTHONPATH"), str(HERE / "kernels")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def variables(given: Mapping[str, object]) -> dict[str, str]:
    """Variables of the environment, by the names that settings' files and what runs inside a peer have."""
    return {f"PEERS_{name}": str(value) for name, value in given.items()}


def run(
    command: Sequence[str], told: Mapping[str, str], log: Path, seconds: float, steps: int,
    read: Callable[[str, float], Ended | None],
) -> list[Ended]:  # fmt: skip
    """The first `steps` steps that ended within `seconds`. `read`: the step that a line tells of, and when it
    came. `told`: variables of the environment. What the peer says goes to `log`."""
    ended: list[Ended] = []
    with closing(said(command, told, log, seconds)) as lines:
        for now, line in lines:
            step = read(line, now)
            ended += [step] if step else []
            if len(ended) == steps:
                break
    return ended


def said(
    command: Sequence[str], told: Mapping[str, str], log: Path, seconds: float
) -> Generator[tuple[float, str]]:
    """What a peer says within `seconds`, line by line, each with the seconds since it was started; to `log`
    too. Once this is closed no process of it is left. `told`: variables of its environment."""
    # Workers of a peer import this package too.
    path = os.pathsep.join([str(HERE.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    began = time.monotonic()
    child = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path, **told}, text=True, errors="replace",
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with log.open("w") as kept:
        try:
            for now, line in _lines(child, began + seconds):
                kept.write(f"{now - began:8.2f} {line}")
                yield now - began, line
        finally:
            _end(child)


def _lines(child: "subprocess.Popen[str]", deadline: float) -> Iterator[tuple[float, str]]:
    """When each line of the output came, and the line; until the output ends, or the deadline."""
    lines: Queue[tuple[float, str] | None] = Queue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put((time.monotonic(), line))
        lines.put(None)

    # A thread, because Ray's daemons may hold the pipe's other end for longer than anyone waits.
    Thread(target=read, daemon=True).start()
    while (left := deadline - time.monotonic()) > 0:
        try:
            came = lines.get(timeout=left)
        except Empty:
            return
        if came is None:
            return
        yield came


def _end(child: "subprocess.Popen[str]") -> None:
    """End the group of processes: asked first, then killed."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sent)
            child.wait(_ENDING)
        except subprocess.TimeoutExpired:
            print(f"process {child.pid} has not ended {_ENDING:g} s after {sent.name}", flush=True)
        except ProcessLookupError:
            # Nobody of the group is left.
            return
