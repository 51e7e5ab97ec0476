"""Which tokens of a response are trained: not those that are too stale, and none of one that has none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.torch import load_file

from rljob_runtime.samples import Span, decode_group, encode
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trained_steps import ALGORITHMS, Weights, settings
from tests.support.runtime.trainer_ranks import groups, model_folder, stored_version, trainer_job, worker

pytestmark = pytest.mark.timeout(300)
"""More than `RankProcesses` waits for a result."""

RANKS = 2


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_stale_beginning_is_trained_like_a_longer_prompt(
    ranks: RankProcesses, tmp_path: Path, name: str, count: int
) -> None:
    """With staleTokens: mask, version 4 and bound 1, tokens of version 2 are context."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    results = []
    for stale in (True, False):
        arguments = folder, ALGORITHMS[name], stale
        results.append(
            _train_stale(0, 1, None, *arguments) if count == 1 else ranks.run(2, _train_stale, *arguments)[0]
        )
    (metrics, weights), (expected, expected_weights) = results
    for field in ("loss", "policy_loss", "kl", "entropy", "grad_norm", "importance_weight_mean"):
        assert getattr(metrics, field) == pytest.approx(getattr(expected, field), rel=1e-5, abs=1e-7), field
    assert (metrics.tokens, metrics.response_tokens) == (expected.tokens, expected.response_tokens)
    assert metrics.masked.tokens > 0.1 and metrics.masked.oldest_trained == 1
    assert (metrics.staleness_max, expected.staleness_max) == (2, 1)
    for tensor, value in expected_weights.items():
        np.testing.assert_allclose(weights[tensor], value, atol=1e-6, err_msg=tensor)


def _train_stale(
    rank: int, world_size: int, store: Path | None, folder: Path, algorithm: dict[str, Any], stale: bool
) -> tuple[StepMetrics, Weights]:
    """Train groups of one response each, of which every second has a stale third; with `stale` false, that
    third belongs to the prompt instead."""
    made = []
    for group in groups(6, samples=1, seed=1):
        sample = group.samples[0]
        size = len(sample.tokens)
        cut = size // 3 if group.uid % 2 else 0
        spans = tuple(span for span in (Span(2, 0, cut), Span(3, cut, size)) if span.end > span.start)
        prompt = group.prompt
        if not stale:
            prompt = np.concatenate([prompt, sample.tokens[:cut]])
            sample = replace(sample, tokens=sample.tokens[cut:], log_probs=sample.log_probs[cut:])
            spans = (Span(3, 0, size - cut),)
        made.append(replace(group, prompt=prompt, samples=(replace(sample, spans=spans),)))
    changes: dict[str, Any] = {"async": {"maxStaleness": 1.0, "staleTokens": "mask"}}
    schedule = {"promptsPerBatch": 3, "batchesPerStep": 2}
    with worker(
        trainer_job(algorithm, schedule=schedule, **changes), folder, rank, world_size, store
    ) as trainer:
        metrics = trainer.train_step(4, 4, made if rank == 0 else None)
        ref = stored_version(trainer, 5)
        weights = load_file(Path(ref.location) / "model.safetensors") if ref is not None else {}
        return metrics, {name: value.float().numpy() for name, value in weights.items()}


@pytest.mark.parametrize(("count", "cap"), [(1, 64), (2, 64), (2, 32)])
def test_responses_without_tokens_count_and_are_not_trained(
    ranks: RankProcesses, tmp_path: Path, count: int, cap: int
) -> None:
    """An engine may end a response at once. Every fourth one is empty, then all of one update, then all.
    With a cap of 32 ranks share samples."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    alone = _train_empty(0, 1, None, folder, 64)
    metrics, weights = alone if count == 1 else ranks.run(count, _train_empty, folder, cap)[0]
    for each, expected, share in zip(metrics, alone[0], (0.25, 0.5, 1.0), strict=True):
        assert (each.samples, each.tokens, each.response_tokens) == (
            24,
            expected.tokens,
            expected.response_tokens,
        )
        assert (each.response_tokens == 0) == (share == 1.0)
        assert np.isfinite([each.loss, each.grad_norm, each.entropy, each.reward_mean]).all()
        assert each.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-6)
        assert each.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    for name, value in weights[1].items():
        assert not np.array_equal(weights[0][name], value), name
        np.testing.assert_array_equal(weights[2][name], value, err_msg=name)


def _train_empty(
    rank: int, world_size: int, store: Path | None, folder: Path, cap: int
) -> tuple[list[StepMetrics], list[Weights]]:
    """The metrics of three steps, and the weights after each."""
    empty: list[Callable[[int, int], bool]] = [
        lambda group, sample: sample == 1,
        lambda group, sample: group < 3,
        lambda group, sample: True,
    ]
    with worker(
        trainer_job(**settings({}, cap), ranks=world_size), folder, rank, world_size, store
    ) as trainer:
        metrics, weights = [], []
        for step, is_empty in enumerate(empty):
            made = [
                replace(
                    group,
                    samples=tuple(
                        replace(sample, tokens=sample.tokens[:0], log_probs=sample.log_probs[:0], spans=())
                        if is_empty(group.uid, index)
                        else sample
                        for index, sample in enumerate(group.samples)
                    ),
                )
                for group in groups(6, seed=step, version=step)
            ]
            # As they come from the queue.
            made = [decode_group(encode(group)) for group in made]
            metrics.append(trainer.train_step(step, step, made if rank == 0 else None))
            weights.append({name: tensor.float().numpy().copy() for name, tensor in trainer.weights()})
        return metrics, weights
