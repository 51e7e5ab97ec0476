"""Weights broadcast over NCCL to vLLM engines. Needs two NVIDIA accelerators."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rljob_runtime.engines.protocol import Engine, WeightRef
from rljob_runtime.weights.collective import Rendezvous
from tests.support.runtime.engines import started, vllm_engine
from tests.support.runtime.tiny_models import check_log_probs, perturbed, request, tiny_model
from tests.support.runtime.weight_receivers import meeting_place

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA accelerators"),
    pytest.mark.timeout(300),
]

SENDER = """
import sys
from pathlib import Path
from safetensors.torch import load_file
from rljob_runtime.weights.contents import tensor_shapes
from rljob_runtime.weights.nccl import NcclSender

address, staged = sys.argv[1], sys.argv[2] == "staged"
base, folders = Path(sys.argv[3]), [Path(name) for name in sys.argv[4:]]
sender = NcclSender()
sender.init(2, address)
for version, folder in enumerate(folders, start=1):
    weights = sorted(load_file(folder / "model.safetensors", device="cuda").items())
    sender.send(version, weights, tensor_shapes(base), staged)
    print("sent", version, flush=True)
sender.close()
"""


@pytest.fixture
def second_accelerator() -> Iterator[None]:
    """Engines started meanwhile run on the second accelerator; senders take the first."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    yield
    if before is None:
        del os.environ["CUDA_VISIBLE_DEVICES"]
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = before


def start_sender(
    meeting: Rendezvous, base: Path, folders: list[Path], staged: bool
) -> "subprocess.Popen[bytes]":
    (script := base.parent / "sender.py").write_text(SENDER)
    return subprocess.Popen(
        [
            sys.executable,
            script,
            f"{meeting.host}:{meeting.port}",
            "staged" if staged else "in the pause",
            base,
            *folders,
        ],
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "0",
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        },
    )


@pytest.mark.parametrize(
    ("tied", "staged"),
    [(False, False), (True, False), (True, True)],
    ids=["untied", "tied", "while it generates"],
)
async def test_every_broadcast_version_agrees_with_the_trainer(
    tmp_path: Path, tied: bool, staged: bool, second_accelerator: None
) -> None:
    base = tiny_model(tmp_path / "model", tied=tied)
    folders = [perturbed(base, tmp_path / f"v{version}", version) for version in (1, 2, 3)]
    meeting = meeting_place()
    async with started(vllm_engine(base, "nccl")) as engine:
        sender = start_sender(meeting, base, folders, staged)
        for version, folder in enumerate(folders, start=1):
            await check_load(engine, base, folder, WeightRef(version, "nccl", str(meeting), staged))
        assert await asyncio.to_thread(sender.wait, 30) == 0


async def test_a_folder_is_loaded_by_both_ranks_of_an_engine(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "model", tied=True)
    async with started(vllm_engine(base, "two", tensor_parallel=2)) as engine:
        for version in (1, 2):
            folder = perturbed(base, tmp_path / f"v{version}", version)
            await check_load(engine, base, folder, WeightRef(version, "shm", str(folder)))


async def check_load(engine: Engine, base: Path, folder: Path, ref: WeightRef) -> None:
    """After a load of `ref` an engine's log-probabilities are those of the weights in `folder`."""
    assert engine.stages
    async with asyncio.timeout(120):
        if ref.staged or ref.transport == "shm":
            await engine.prepare(ref)
        await engine.pause("keep")
        await engine.load(ref)
    await engine.resume()
    asked = [request(f"{ref.version}-{seed}", seed) for seed in range(8)]
    results = await asyncio.gather(*map(engine.submit, asked))
    check_log_probs(base, {ref.version: folder}, zip(asked, results, strict=True))
