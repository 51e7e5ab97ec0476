"""What a step learns, says of itself, and refuses; on one rank."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from rljob_runtime.job_errors import TrainingDiverged
from rljob_runtime.parallel.micro_batches import SampleTooLong
from rljob_runtime.samples import Group, Sample, Span
from rljob_runtime.trainer.packing import pack
from tests.support.runtime.tiny_models import sharpened
from tests.support.runtime.trainer_ranks import (
    SERVED,
    VOCABULARY,
    groups,
    made_up,
    model_folder,
    taught,
    trainer_job,
    worker,
)


def test_decoupled_clip_uses_the_weights_of_the_steps_beginning(tmp_path: Path) -> None:
    """With the engines' log-probabilities equal to the trainer's, importance weights are 1 in every batch of
    the step, although the first update has moved the policy when the second batch is trained."""
    common: dict[str, Any] = {
        "schedule": {"promptsPerBatch": 2, "batchesPerStep": 2}, "optimizer": {"learningRate": 0.02}
    }  # fmt: skip
    job = trainer_job({"policyLoss": {"decoupledClip": {}}}, **common)
    with worker(job, model_folder(job, tmp_path / "model")) as trainer:
        exact = scored(trainer, groups(4))
        metrics = trainer.train_step(0, 0, exact)
        assert metrics.importance_weight_mean == pytest.approx(1.0, abs=1e-5)
        assert metrics.parity_max < 1e-5
    with worker(trainer_job(**common), tmp_path / "model") as trainer:
        metrics = trainer.train_step(0, 0, exact)
        assert metrics.parity_max < 1e-5
        assert abs(metrics.importance_weight_mean - 1.0) > 1e-4


def scored(trainer: Any, made: list[Group]) -> list[Group]:
    """Groups whose log-probabilities are the trainer's own."""

    def exact(group: Group) -> Group:
        packed = pack(
            [group.prompt] * len(group.samples), [s.tokens for s in group.samples], torch.device("cpu")
        )
        with torch.no_grad():
            log_probs, _ = trainer._policy(packed)
        parts = np.split(log_probs.numpy(), np.cumsum([len(s.tokens) for s in group.samples])[:-1])
        pairs = zip(group.samples, parts, strict=True)
        return replace(group, samples=tuple(replace(sample, log_probs=part) for sample, part in pairs))

    return [exact(group) for group in made]


def test_staleness_and_spans_are_counted(tmp_path: Path) -> None:
    job = trainer_job(**{"async": {"stepsPerVersion": 2, "maxStaleness": 2.0}})
    first, second = groups(2, samples=2, version=3)
    spans = (Span(1, 0, 1), Span(3, 1, len(first.samples[0].tokens)))
    first = replace(first, samples=(replace(first.samples[0], spans=spans), first.samples[1]))
    with worker(job, model_folder(job, tmp_path / "model")) as trainer:
        fresh = trainer.train_step(6, 3, [first, second])
        later = trainer.train_step(7, 3, [first, second])
    assert fresh.staleness_histogram == {0: 2, 2: 1}
    assert (fresh.staleness_max, fresh.staleness_mean) == (2, pytest.approx(2 / 3))
    assert fresh.mixed_share == pytest.approx(1 / 3)
    assert (fresh.samples, fresh.failed) == (4, 1)
    assert fresh.parity_max is not None
    assert later.parity_max is None, "the weights have moved on since version 3 was published"


def test_a_step_without_anything_to_learn_leaves_the_weights(tmp_path: Path) -> None:
    job = trainer_job(optimizer={"schedule": "linear"})
    failed = [
        replace(group, samples=tuple(replace(sample, failure="error") for sample in group.samples))
        for group in groups(2)
    ]
    with worker(job, model_folder(job, tmp_path / "model")) as trainer:
        before = {name: tensor.clone() for name, tensor in trainer.weights()}
        metrics = trainer.train_step(0, 0, failed)
        assert all(torch.equal(before[name], tensor) for name, tensor in trainer.weights())
        assert (metrics.failed, metrics.response_tokens, metrics.loss) == (8, 0, 0.0)
        assert trainer.train_step(1, 1, groups(2)).learning_rate == pytest.approx(0.9e-3)


def _endless(sample: Sample) -> Sample:
    return replace(sample, reward=float("inf"))


def _nonsense(sample: Sample) -> Sample:
    return replace(sample, log_probs=np.full_like(sample.log_probs, np.nan))


@pytest.mark.parametrize(
    ("broken", "cure"), [(_endless, "lower optimizer.learningRate"), (_nonsense, "an engine gave")]
)
def test_a_gradient_that_is_not_finite_never_reaches_the_weights(
    tmp_path: Path, broken: Callable[[Sample], Sample], cure: str
) -> None:
    job = trainer_job()
    # One of each group: rewards that are all equal have no advantage, whatever they are.
    made = [replace(group, samples=(broken(group.samples[0]), *group.samples[1:])) for group in groups(2)]
    with worker(job, model_folder(job, tmp_path / "model")) as trainer:
        before = {name: tensor.clone() for name, tensor in trainer.weights()}
        with (
            np.errstate(invalid="ignore"),
            pytest.raises(TrainingDiverged, match=f"step 4: the gradient is not finite, .*: {cure}"),
        ):
            trainer.train_step(3, 3, made)
        assert all(torch.equal(before[name], tensor) for name, tensor in trainer.weights())


@pytest.mark.parametrize("which", ["teacher", "reference"])
def test_a_frozen_model_that_says_no_numbers_is_named(tmp_path: Path, which: str) -> None:
    algorithm = {
        "teacher": {"distillation": {"teacher": {"path": "teacher"}}},
        "reference": {"kl": {}},
    }[which]
    job = trainer_job(algorithm)
    folder, teacher = model_folder(job, tmp_path / "model"), None
    if which == "teacher":
        teacher = model_folder(trainer_job(seed=1), tmp_path / "teacher")
    with worker(job, folder, teacher_folder=teacher) as trainer:
        frozen = trainer._steps._teacher if which == "teacher" else trainer._steps._reference
        assert frozen is not None
        with torch.no_grad():
            next(iter(frozen.parameters())).fill_(float("nan"))
        words = {
            "teacher": r"the teacher \(teacher, training\.algorithm\.distillation\.teacher\.path\) gave log",
            "reference": r"the reference model, with which training began \(.*random\), gave log",
        }[which]
        with pytest.raises(TrainingDiverged, match=f"step 1: {words}") as raised:
            trainer.train_step(0, 0, groups(2))
        assert "learningRate" not in str(raised.value)


def test_a_sample_above_the_cap_is_an_error(tmp_path: Path) -> None:
    job = trainer_job()
    with (
        worker(job, model_folder(job, tmp_path / "model")) as trainer,
        pytest.raises(SampleTooLong, match="sample 0 of prompt 0 has"),
    ):
        trainer.train_step(0, 0, groups(1, longest=400, seed=2))


def test_events_cover_the_step(tmp_path: Path) -> None:
    job = trainer_job({"kl": {}})
    with worker(job, model_folder(job, tmp_path / "model"), events=tmp_path / "events") as trainer:
        trainer.train_step(0, 0, groups(8))
        shares = []
        for step in range(1, 6):
            began = time.time()
            metrics = trainer.train_step(step, step, groups(8))
            took = time.time() - began
            trainer.publish(step)
            trainer._phases._events.flush()
            lines = (tmp_path / "events" / f"step_{step}" / "worker_0.jsonl").read_text().splitlines()
            events = [json.loads(line) for line in lines]
            assert {event["event"] for event in events} == {
                "share", "forward", "backward", "reduce", "optimizer", "reference_forward", "weight_publish",
            }  # fmt: skip
            recorded = sum(event["duration"] for event in events if event["event"] != "weight_publish")
            # A step's metrics have what was published since the last one.
            said = {name: seconds for name, seconds in metrics.seconds.items() if name != "weight_publish"}
            assert recorded == pytest.approx(sum(said.values()), abs=1e-3)
            assert recorded <= took
            shares.append(recorded / took)
    # Of the best step: on a busy machine any of them may be interrupted between its parts.
    assert max(shares) > 0.5


def divergence(trainer: Any) -> float:
    """KL(policy || teacher) of the token after a prompt, over the whole vocabulary, in nats."""
    prompts = [group.prompt for group in groups(8, seed=99)]
    every = np.arange(VOCABULARY, dtype=np.int32)
    packed = pack([prompt for prompt in prompts for _ in every], [*every[:, None]] * 8, torch.device("cpu"))
    with torch.no_grad():
        policy, teacher = (model(packed).log_probs for model in (trainer._policy, trainer._steps._teacher))
    return float((policy.exp() * (policy - teacher)).sum() / len(prompts))


def drawn_evenly(group: Group) -> Group:
    """Tokens are random: each of the vocabulary as likely as any other, which is what an engine would say."""
    even = [np.full(len(sample.tokens), -np.log(VOCABULARY), np.float32) for sample in group.samples]
    pairs = zip(group.samples, even, strict=True)
    return replace(
        group, samples=tuple(replace(sample, failure=None, log_probs=each) for sample, each in pairs)
    )


def test_moves_towards_its_teacher(tmp_path: Path) -> None:
    """A teacher of another shape, that is sure of its next token; rewards are random, and teach nothing."""
    algorithm = {
        "advantage": {"none": {}},
        "distillation": {"teacher": {"path": "teacher"}},
        # Tokens that the policy would draw more often weigh as much as if it had.
        "policyLoss": {"truncatedReinforce": {"weightCap": 1000}},
    }
    job = trainer_job(algorithm, optimizer={"learningRate": 5e-3}, schedule={"promptsPerBatch": 8})
    other = trainer_job(model={"layers": 1, "attentionHeads": 8}, seed=1)
    teacher = sharpened(model_folder(other, tmp_path / "teacher"), 8)
    folder = model_folder(job, tmp_path / "model")
    with worker(job, folder, total_updates=30, teacher_folder=teacher) as trainer:
        before = divergence(trainer)
        made = [drawn_evenly(group) for group in groups(8, seed=0, samples=8, longest=12)]
        first = trainer.train_step(0, 0, made)
        assert first.teacher_kl == pytest.approx(difference(folder, teacher, made), abs=1e-5)
        for step in range(1, 30):
            made = groups(8, seed=step, samples=8, longest=12, version=step)
            trainer.train_step(step, step, [drawn_evenly(group) for group in made])
        after = divergence(trainer)
        assert before > 0.4 and after < before / 2, (before, after)


def test_a_server_that_says_what_the_trainer_would_teaches_the_same(tmp_path: Path) -> None:
    """One teacher, scored in the trainer and come with the samples: with micro-batches, with two updates, and
    with tokens that are too old to be trained."""
    common: dict[str, Any] = {
        "schedule": {"promptsPerBatch": 2, "batchesPerStep": 2},
        "async": {"maxStaleness": 1, "staleTokens": "mask"},
    }
    job = trainer_job({"distillation": {"teacher": {"path": "teacher"}}}, **common)
    other = trainer_job(model={"layers": 1, "attentionHeads": 8}, seed=1)
    teacher = sharpened(model_folder(other, tmp_path / "teacher"), 8)
    folder = model_folder(job, tmp_path / "model")
    made = [partly_old(group) for group in groups(4, version=3)]
    model = AutoModelForCausalLM.from_pretrained(teacher).eval()
    said = [taught(group, lambda group, each: said_by(model, group, each.tokens).numpy()) for group in made]
    found = []
    for asked, given, options in (
        (job, made, {"teacher_folder": teacher}),
        (trainer_job(SERVED, **common), said, {}),
    ):
        with worker(asked, folder, **options) as trainer:
            assert (trainer._steps._teacher is None) == (not options)
            metrics = trainer.train_step(3, 3, given)
            found.append((metrics, {name: tensor.clone() for name, tensor in trainer.weights()}))
    (first, scored_here), (second, told) = found
    assert first.masked is not None and first.masked.tokens > 0.1
    assert first.teacher_kl == pytest.approx(second.teacher_kl, abs=1e-5)
    assert first.grad_norm == pytest.approx(second.grad_norm, rel=1e-4)
    for name, tensor in scored_here.items():
        torch.testing.assert_close(tensor, told[name], atol=1e-5, rtol=0, msg=name)


def test_a_sample_that_lacks_what_its_teacher_said_is_an_error(tmp_path: Path) -> None:
    job = trainer_job(SERVED)
    made = [taught(group, made_up) for group in groups(4)]
    lacking = replace(made[1], samples=tuple(replace(s, teacher_log_probs=None) for s in made[1].samples))
    with worker(job, model_folder(job, tmp_path / "model")) as trainer:
        with pytest.raises(ValueError, match="group 1 has no log-probabilities of the teacher"):
            trainer.train_step(0, 0, [made[0], lacking, *made[2:]])
        assert trainer.train_step(0, 0, made).teacher_kl != 0


def partly_old(group: Group) -> Group:
    """The first half of each response is of weights that are too old to be trained."""
    return replace(
        group,
        dispatch_version=0,
        samples=tuple(
            replace(each, spans=(Span(0, 0, half), Span(3, half, len(each.tokens))))
            if (half := len(each.tokens) // 2)
            else each
            for each in group.samples
        ),
    )


def said_by(model: Any, group: Group, response: Any) -> torch.Tensor:
    """Log-probabilities of a response's tokens, by transformers alone."""
    tokens = torch.from_numpy(np.concatenate([group.prompt, response])).long()
    with torch.no_grad():
        found = model(tokens[None]).logits[0].log_softmax(-1)
    places = torch.arange(len(group.prompt) - 1, len(tokens) - 1)
    return found[places, tokens[places + 1]]


def difference(policy: Path, teacher: Path, made: list[Group]) -> float:
    """Mean of log(policy / teacher) over the tokens of responses, by transformers alone."""
    models = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (policy, teacher)]
    found = []
    for group in made:
        for sample in group.samples:
            one, other = (said_by(model, group, sample.tokens) for model in models)
            found.append(one - other)
    return float(torch.cat(found).mean())


def preference(trainer: Any) -> float:
    """How much likelier, in nats, tokens 1, 5, 9, ... are than others."""
    samples = [sample for group in scored(trainer, groups(4, seed=99)) for sample in group.samples]
    tokens = np.concatenate([sample.tokens for sample in samples])
    log_probs = np.concatenate([sample.log_probs for sample in samples])
    return float(log_probs[tokens % 4 == 1].mean() - log_probs[tokens % 4 != 1].mean())


def test_learns_what_is_rewarded(tmp_path: Path) -> None:
    """A response is rewarded for its share of some tokens: they become likelier than the others."""

    def rewarded(group: Group) -> Group:
        shares = [float((sample.tokens % 4 == 1).mean()) for sample in group.samples]
        pairs = zip(group.samples, shares, strict=True)
        return replace(
            group, samples=tuple(replace(sample, failure=None, reward=share) for sample, share in pairs)
        )

    job = trainer_job(optimizer={"learningRate": 5e-3}, schedule={"totalSteps": 30, "promptsPerBatch": 4})
    with worker(job, model_folder(job, tmp_path / "model"), total_updates=30) as trainer:
        before = preference(trainer)
        for step in range(30):
            made = groups(4, seed=step, samples=8, longest=12, version=step)
            trainer.train_step(step, step, scored(trainer, [rewarded(group) for group in made]))
        assert abs(before) < 0.2
        assert preference(trainer) > 0.5
