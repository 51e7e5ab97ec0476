"""What a router adds to its scores when it chooses experts: trainer and engines have it in float32, whatever
the number format of the others. Each is given such values that rounded ones choose other experts."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from rljob_runtime.trainer.model import load_policy
from rljob_runtime.trainer.packing import pack
from rljob_runtime.trainer.sampling_distribution import Distribution
from tests.runtime.test_trainer_model import samples
from tests.support.runtime.engines import started, vllm_engine
from tests.support.runtime.families import family_model
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.tiny_models import request
from tests.support.runtime.trainer_ranks import groups, stored_version, trainer_job, worker

RANKS = 2
TEXTS = [(5, 30), (3, 40)]
BFLOAT16: dict[str, Any] = {"policy": {"dtype": "bfloat16"}}
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"num_key_value_heads": 4},
    "glm4_moe": {},
    "minimax_m2": {},
    "laguna": {},
    "ernie4_5_moe": {},
}
"""The first two are float32 in transformers' models of bfloat16, and buffers; the third is rounded there; the
last two are parameters that are not trained."""


def corrected_model(folder: Path, kind: str, **sizes: int) -> Path:
    """Its corrections lie within one step of bfloat16 (0.5 near 100): rounded, all of them are the same."""
    family_model(folder, kind, **FAMILIES[kind], **sizes)
    tensors = load_file(file := folder / "model.safetensors")
    names = corrections(tensors)
    assert names
    for number, name in enumerate(names):
        generator = torch.Generator().manual_seed(number)
        tensors[name] = 100 + 0.2 * torch.rand(tensors[name].shape, generator=generator)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def corrections(tensors: dict[str, Any]) -> list[str]:
    return sorted(name for name in tensors if name.endswith("e_score_correction_bias"))


@contextmanager
def chosen_with(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """The corrections as they are while the model computes, by their names in it."""
    seen: dict[str, torch.Tensor] = {}
    hooks = []

    def note(name: str) -> Any:
        def hook(module: Any, *_: Any) -> None:
            seen[name] = module.e_score_correction_bias.detach().clone()

        return hook

    for name, module in model.named_modules():
        if getattr(module, "e_score_correction_bias", None) is not None:
            hooks.append(module.register_forward_hook(note(name)))
    try:
        yield seen
    finally:
        for each in hooks:
            each.remove()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", FAMILIES)
def test_what_is_published_is_what_the_trainer_computes_with(
    ranks: RankProcesses, tmp_path: Path, kind: str, count: int
) -> None:
    folder = corrected_model(tmp_path / "model", kind)
    stored = load_file(folder / "model.safetensors")
    names = corrections(stored)
    for published, used, _ in ranks.run(count, _train, folder):
        assert {str(each.dtype) for name, each in published.items() if name not in names} == {
            "torch.bfloat16"
        }
        assert len(used) == len(names)
        expected = sorted(stored[name].flatten().tolist() for name in names)
        for found in ([published[name] for name in names], list(used.values())):
            assert {each.dtype for each in found} == {torch.float32}
            assert sorted(each.flatten().tolist() for each in found) == expected


def _train(
    rank: int, world_size: int, store: Path, folder: Path
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[float]]:
    """What is published after a step, the corrections that the step was computed with, and what the trainer
    then says of `TEXTS`."""
    with worker(trainer_job(**BFLOAT16), folder, rank, world_size, store) as trainer:
        with chosen_with(trainer._policy.model) as used:
            trainer.train_step(0, 0, groups(4, seed=0) if rank == 0 else None)
        with torch.no_grad():
            scored = trainer._policy(pack(*samples(TEXTS), torch.device("cpu")))
        return dict(trainer.weights()), used, scored.log_probs.tolist()


@pytest.mark.parametrize("weights", [True, False], ids=["rank 0", "others"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_that_is_held_in_bfloat16_has_them_in_float32(
    tmp_path: Path, kind: str, weights: bool
) -> None:
    """A reference, a teacher, and what an adapter is for; no rank shards or updates them."""
    folder = corrected_model(tmp_path / "model", kind)
    stored = load_file(folder / "model.safetensors")
    model = load_policy(folder, Distribution(), torch.bfloat16, weights=weights).model
    buffers = [each for name, each in model.named_buffers() if name.endswith("e_score_correction_bias")]
    assert len(buffers) == len(corrections(stored))
    assert not [name for name, _ in model.named_parameters() if name.endswith("e_score_correction_bias")]
    if weights:
        assert {each.dtype for each in buffers} == {torch.float32}
        found = sorted(each.flatten().tolist() for each in buffers)
        assert found == sorted(stored[name].flatten().tolist() for name in corrections(stored))


def test_an_engine_scores_what_is_published_as_the_trainer(tmp_path: Path, ranks: RankProcesses) -> None:
    """The engine is transformers' model in bfloat16, which has these corrections in float32, as vLLM does."""
    folder = corrected_model(tmp_path / "model", "glm4_moe")
    published, _, found = ranks.run(1, _train, folder)[0]
    save_file(published, folder / "model.safetensors", metadata={"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.bfloat16
    )
    expected: list[float] = []
    for prompt, response in zip(*samples(TEXTS), strict=True):
        tokens = torch.from_numpy(np.concatenate([prompt, response])).long()
        with torch.no_grad():
            logits = model(tokens[None]).logits[0, len(prompt) - 1 : -1].double()
        expected += logits.log_softmax(-1).gather(1, tokens[len(prompt) :, None])[:, 0].tolist()
    assert np.abs(np.array(found) - expected).mean() < 0.05


async def test_vllm_samples_with_what_is_published_as_the_trainer_scores(tmp_path: Path) -> None:
    """With rounded corrections the two are 0.06 nats apart in the mean, twice as far as here at most."""
    folder = corrected_model(tmp_path / "model", "glm4_moe", head_dim=32)
    job = trainer_job(**BFLOAT16)
    with worker(job, folder) as trainer:
        trainer.train_step(0, 0, groups(4, seed=0))
        ref = stored_version(trainer, 1)
        async with started(vllm_engine(folder, dtype="bfloat16")) as engine:
            await engine.pause("keep")
            await engine.load(ref)
            await engine.resume()
            asked = [request(f"r{seed}", seed, length=12, max_tokens=60) for seed in range(8)]
            got = await asyncio.gather(*map(engine.submit, asked))
        prompts, responses = [each.tokens for each in asked], [each.tokens for each in got]
        with torch.no_grad():
            scored = trainer._policy(pack(prompts, responses, torch.device("cpu"))).log_probs.numpy()
    assert np.abs(scored - np.concatenate([each.log_probs for each in got])).mean() < 0.03
