"""Versions that are copied into vLLM's models are the same as those that vLLM loads: by every rank, for the
families that vLLM makes one layer of several tensors for, experts, and tied embeddings."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.runtime.tiny_models import Family, perturbed, tiny_model
from tools.cluster.ports import Ports

pytestmark = pytest.mark.timeout(600)

# Those with experts first: vLLM makes its groups of ranks once, and those of experts only for them.
FAMILIES: list[Family] = ["qwen3_moe", "mixtral", "qwen3", "qwen2", "llama"]
TIED: list[Family] = ["qwen2"]
OLD: Family = "llama"
"""Of an old release: with rotations, which nobody reads, and which versions do not have."""
PORTS = Ports()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged")
    for family in FAMILIES:
        base = tiny_model(folder / family, family, tied=family in TIED)
        perturbed(base, folder / f"{family}-new", 1)
    file = folder / OLD / "model.safetensors"
    rotations = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file(load_file(file) | rotations, file, {"format": "pt"})
    return folder


def results(folder: Path, ranks: int, families: list[str]) -> list[list[dict[str, Any]]]:
    """What each rank says of each family."""
    port, module = PORTS.take(), "tests.support.runtime.staged_model"
    # As vLLM names, for its workers, the memory that ranks on CPUs with AVX-512 share: nobody takes it away.
    shared = f"staged_{uuid4().hex}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(ranks), str(port), str(folder), *families],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "VLLM_DIST_IDENT": shared},
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=400)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
        for segment in Path("/dev/shm").glob(f"{shared}-*"):
            segment.unlink()
    return [[json.loads(line) for line in output.splitlines() if line[:1] == "{"] for output in outputs]


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_copied_is_what_vllm_loads(folder: Path, ranks: int) -> None:
    right = [{"family": family, "same": True, "moved": True} for family in FAMILIES]
    packed = "packed-llama"
    for told in results(folder, ranks, [*FAMILIES, packed]):
        assert told[:-1] == right
        # What is packed is left to vLLM, which is said.
        assert told[-1]["family"] == packed
        assert "kept in another form than it is loaded in" in told[-1]["obstacle"]
