"""A process that sends weights as a trainer does, on the first GPU, or on the CPU over gloo.

It is told by lines on its standard input, and answers each by one line of JSON.

    python -m tests.bench.weight_sender TRANSPORT FOLDER FOLDER          (the bench starts it)
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_runtime.weights.collective import Rendezvous
from rljob_runtime.weights.nccl import NcclSender
from tests.bench.weight_staging_rows import Sent, after_first
from tests.support.runtime.gloo_group import GlooSender
from tools.cluster.ports import Ports

if TYPE_CHECKING:
    import torch

_SECONDS = 120.0
"""Any answer takes less."""


class Sender:
    """The bench's side of the process."""

    def __init__(self, transport: str, folders: Sequence[Path]) -> None:
        ports = Ports()
        self.both = transport == "nccl"
        """Whether engines also receive in their pause by this transport."""
        self._meetings = {staged: Rendezvous("127.0.0.1", ports.take(), 2, 1) for staged in (True, False)}
        self._staged = True
        self._sent: list[Sent] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.weight_sender", transport, *map(str, folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
        )

    def location(self, staged: bool) -> str:
        """Where an engine meets it for its next version."""
        self._staged = staged
        return str(self._meetings[staged])

    async def send(self, folder: int) -> None:
        """Send the weights of a folder, by its number, to the engine that comes."""
        answer = await self._ask({"address": self._meetings[self._staged].address, "folder": folder, "staged":
                                  self._staged})  # fmt: skip
        self._sent.append(Sent(**answer))

    def newest(self, count: int) -> Sequence[Sent]:
        """The newest sendings, the oldest first."""
        return self._sent[-count:]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    async def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(what) + "\n")
        stdin.flush()
        async with asyncio.timeout(_SECONDS):
            line = await asyncio.to_thread(stdout.readline)
        answer: dict[str, Any] = json.loads(line)
        return answer


class TimedGloo(GlooSender):
    """A broadcast returns when its bytes have left."""

    def __init__(self) -> None:
        super().__init__()
        self._left: list[tuple[int, float]] = []

    def _broadcast(self, tensor: "torch.Tensor", stream: None) -> None:
        super()._broadcast(tensor, stream)
        self._left.append((tensor.nbytes, time.perf_counter()))

    def after_first(self) -> tuple[float, float]:
        """As `after_first`, of what was broadcast since it was asked last."""
        left, self._left = self._left, []
        return after_first(left, lambda first, last: 1e3 * (last - first))


class TimedNccl(NcclSender):
    """Events on the stream that broadcasts tell when the GPU is done with each."""

    def __init__(self) -> None:
        super().__init__()
        self._left: list[tuple[int, Any]] = []

    def _broadcast(self, tensor: "torch.Tensor", stream: Any) -> None:
        super()._broadcast(tensor, stream)
        self._left.append((tensor.nbytes, stream.record_event(_timing_event())))

    def after_first(self) -> tuple[float, float]:
        """As `after_first`, of what was broadcast since it was asked last; all of it has been sent."""
        left, self._left = self._left, []
        return after_first(left, lambda first, last: float(first.elapsed_time(last)))


def _timing_event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def main() -> None:
    from safetensors.torch import load_file

    from rljob_runtime.weights.contents import tensor_shapes

    transport, folders = sys.argv[1], [Path(name) for name in sys.argv[2:]]
    # The answers alone go where they are read.
    answers, sys.stdout = sys.stdout, sys.stderr
    device = "cuda" if transport == "nccl" else "cpu"
    files = [load_file(folder / "model.safetensors", device=device) for folder in folders]
    versions = [dict(sorted(file.items())) for file in files]
    shapes = tensor_shapes(folders[0])
    senders: dict[str, TimedNccl | TimedGloo] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        address = asked["address"]
        if address not in senders:
            senders[address] = TimedGloo() if transport == "gloo" else TimedNccl()
            senders[address].init(2, address)
        began = time.perf_counter()
        weights = versions[asked["folder"]].items()
        senders[address].send(1, weights, shapes, asked["staged"])
        whole = 1e3 * (time.perf_counter() - began)
        rest, share = senders[address].after_first()
        answer = {"whole": whole, "rest": rest, "rest_share": share}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
