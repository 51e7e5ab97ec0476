"""Choices of a manifest that are valid and seldom meant: each is a warning that says what to do instead.

Pure: from the job, and the number of its prompts.
"""

import math
from collections.abc import Iterator

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_api.training import Training
from rljob_runtime.parallel.busy_ranks import busy_ranks, update_samples

_TRAINING = ("spec", "training")
_LOSS = (*_TRAINING, "algorithm", "policyLoss")
_WIDE = 0.05
"""No mean ratio of a response comes so far from 1 while training is stable."""
_FEW_STEPS = 5
"""Fewer steps than these are hardly ever meant."""
_HOTTEST = 2.0
"""The highest temperature that vLLM 0.32 takes; 0.22 has no highest one."""
_OLDEST = 8
"""Versions. The largest bound of staleness that published runs take: AReaL (arXiv:2505.24298) 4 to 8, with a
decoupled loss; it is prime-rl's default too, and TRL's is 4."""
_CORRECTIONS = {
    "clip": "policyLoss.decoupledClip",
    "gspo": "algorithm.rolloutCorrection",
    "sapo": "algorithm.rolloutCorrection",
}
"""By loss without importance weights, what adds them."""


def traps(job: RLJob, prompts: int | None = None) -> Iterator[Problem]:
    """What to look at again, in the order of the manifest's fields. `prompts`: of an epoch of the job's data;
    None where that is not known."""
    training = job.spec.training
    yield from _punishments(training)
    yield from _system_prompts(training)
    yield from _single_responses(training)
    yield from _certain_tokens(training)
    yield from _equal_groups(training)
    yield from _impossible_rates(training)
    yield from _two_models(training)
    yield from _unclipped(training)
    yield from _response_losses(training)
    yield from _few_steps(training, prompts)
    yield from _old_samples(training, prompts)
    yield from _ranks_without_samples(job)
    yield from _optimizer_without_cpus(job)
    yield from _engines_without_cpus(job)
    yield from _slow_drafts(job)
    yield from _high_temperatures(training)


def _punishments(training: Training) -> Iterator[Problem]:
    if training.algorithm.advantage.max_rl is None:
        return
    for index, each in enumerate(training.reward.functions or ()):
        if each.weight < 0:
            yield Problem(
                (*_TRAINING, "reward", "functions", index, "weight"),
                f"is {each.weight:g}, and algorithm.advantage.maxRl ends the job at the first negative "
                "reward: see that the sum with the other functions is never below 0",
            )


def _system_prompts(training: Training) -> Iterator[Problem]:
    if all(part.system_prompt is None for part in training.data.parts()):
        return
    # Where training.data has one itself, a set has it too, unless it says "".
    if training.data.system_prompt is not None:
        return
    for index, data in enumerate(training.held_out):
        if data.system_prompt is None:
            yield Problem(
                (*_TRAINING, "evaluation", "sets", index, "data"),
                "has no systemPrompt, and prompts are trained with one (training.data): what is evaluated is "
                "not what is trained. Give it the same",
            )


def _unclipped(training: Training) -> Iterator[Problem]:
    """Published runs with importance weights alone became unstable at a mean age of 2.5 versions, where
    clipped ones did not."""
    staleness = training.async_.max_staleness
    if training.algorithm.policy_loss.truncated_reinforce is not None and staleness > 1:
        yield Problem(
            (*_LOSS, "truncatedReinforce"),
            f"clips nothing, and with async.maxStaleness {staleness:g} it may become unstable: set "
            "async.maxStaleness to 1 or less, or take policyLoss.decoupledClip",
        )


def _response_losses(training: Training) -> Iterator[Problem]:
    algorithm = training.algorithm
    name = algorithm.policy_loss.yaml_choice
    gspo = algorithm.policy_loss.gspo
    for field in ("low", "high") if gspo is not None else ():
        if (bound := getattr(gspo, field)) >= _WIDE:
            yield Problem(
                (*_LOSS, "gspo", field),
                f"is {bound:g}, a bound for ratios of tokens: the mean ratio of a response hardly ever comes "
                "so far, so that nothing would be clipped; published bounds are 3e-4 and 4e-4",
            )
    if name in ("gspo", "sapo") and algorithm.aggregation == "token-mean":
        yield Problem(
            (*_TRAINING, "algorithm", "aggregation"),
            f"is token-mean, with which long responses weigh more; policyLoss.{name} was published with "
            "aggregation: sequence-mean",
        )


def _two_models(training: Training) -> Iterator[Problem]:
    algorithm = training.algorithm
    if algorithm.kl is not None and algorithm.advantage.none is not None:
        yield Problem(
            (*_TRAINING, "algorithm", "kl"),
            "holds the policy at the weights that training began with, and algorithm.distillation with "
            "advantage none draws it to the teacher and nowhere else: leave one of them out",
        )


def _single_responses(training: Training) -> Iterator[Problem]:
    algorithm = training.algorithm
    if training.rollout.samples_per_prompt == 1 and algorithm.advantage.grpo is not None:
        yield Problem(
            (*_TRAINING, "rollout", "samplesPerPrompt"),
            "is 1, and a single response is compared with nothing: its reward itself is its advantage, so "
            "that of rewards of 0 and more each response becomes likelier. Take 2 or more, or "
            "algorithm.advantage.reinforcePlusPlus, which compares the responses of a step",
        )


def _certain_tokens(training: Training) -> Iterator[Problem]:
    if training.rollout.top_k == 1:
        yield Problem(
            (*_TRAINING, "rollout", "topK"),
            "is 1, with which each token has probability 1 to the engines and to the trainer: all responses "
            "to a prompt are alike, and nothing is learned from them. Set it to 0 (off), or to 2 or more",
        )


def _equal_groups(training: Training) -> Iterator[Problem]:
    if training.rollout.filter.zero_variance is not None and training.algorithm.distillation is not None:
        yield Problem(
            (*_TRAINING, "rollout", "filter", "zeroVariance"),
            "refuses groups of equal rewards, which algorithm.distillation would learn from: leave the "
            "filter out, unless rewards alone are to say which prompts are trained",
        )
    whitened = training.algorithm.advantage.reinforce_plus_plus
    if training.rollout.filter.zero_variance is not None and whitened is not None and not whitened.baseline:
        yield Problem(
            (*_TRAINING, "rollout", "filter", "zeroVariance"),
            "refuses groups of equal rewards, which algorithm.advantage.reinforcePlusPlus without baseline "
            "would learn from: leave the filter out, or set baseline: true",
        )


def _few_steps(training: Training, prompts: int | None) -> Iterator[Problem]:
    in_step, steps = training.groups_per_step, _steps(training, prompts)
    if prompts is None or training.schedule.epochs is None or steps is None:
        return
    if steps < _FEW_STEPS:
        yield Problem(
            (*_TRAINING, "schedule", "epochs"),
            f"this job trains {steps} step{'' if steps == 1 else 's'}: an epoch has {prompts:,} prompt"
            f"{'' if prompts == 1 else 's'}, and a step takes {in_step:,} (promptsPerBatch * batchesPerStep)."
            " Set more epochs, totalSteps, or a smaller promptsPerBatch",
        )


def _old_samples(training: Training, prompts: int | None) -> Iterator[Problem]:
    bound, steps = training.async_.max_staleness, _steps(training, prompts)
    # The default is nobody's choice, and a job of few steps tries out a longer one.
    trial = steps is not None and steps < _FEW_STEPS
    if bound <= 1 or (trial and bound <= _OLDEST):
        return
    path = (*_TRAINING, "async", "maxStaleness")
    newest = None if steps is None else max(0, steps - 1) // training.async_.steps_per_version
    if newest is not None and math.ceil(bound) > newest:
        yield Problem(
            path,
            f"is {bound:g}, and the last step of this job begins with version {newest}: no sample can "
            f"become so old, and nothing is held back. Published runs take 1 to {_OLDEST}: set it to "
            f"{min(_OLDEST, max(1, newest))} or less",
        )
    elif bound > _OLDEST:
        algorithm = training.algorithm
        missing = (
            None if algorithm.rollout_correction else _CORRECTIONS.get(algorithm.policy_loss.yaml_choice)
        )
        advice = f", and take {missing}, which corrects for their age" if missing is not None else ""
        yield Problem(
            path,
            f"is {bound:g}, and published runs take 1 to {_OLDEST}: where engines are faster than the "
            "trainer, samples become as old as that, and the policy learns less from them. Set it to "
            f"{_OLDEST} or less{advice}",
        )


def _steps(training: Training, prompts: int | None) -> int | None:
    """Steps of the whole job, if no group is refused; None where they are not known."""
    schedule = training.schedule
    if schedule.total_steps is not None:
        return schedule.total_steps
    if schedule.epochs is None or prompts is None:
        return None
    return -(-schedule.epochs * prompts // training.groups_per_step)


def _impossible_rates(training: Training) -> Iterator[Problem]:
    rates, samples = training.rollout.filter.pass_rate, training.rollout.samples_per_prompt
    if rates is None:
        return
    if not any(rates.minimum <= passed / samples <= rates.maximum for passed in range(samples + 1)):
        yield Problem(
            (*_TRAINING, "rollout", "filter", "passRate"),
            f"no group has a pass rate from {rates.minimum:g} to {rates.maximum:g}: of {samples} responses "
            f"(samplesPerPrompt) a multiple of 1/{samples} passes, so that every group is refused as long as "
            "maxRefill lets it. Widen the range",
        )


def _ranks_without_samples(job: RLJob) -> Iterator[Problem]:
    spec, samples, asked = job.spec, update_samples(job.spec), job.spec.context_parallel
    each = asked.fixed.degree if asked.fixed is not None else 1
    # Where long samples are shared by need, few of them may have work for all.
    if asked.hybrid is not None or spec.data_ranks // each <= samples:
        return
    yield Problem(
        ("spec", "pools", "trainer"),
        f"has {spec.trainer_ranks} ranks, of which {spec.trainer_ranks - busy_ranks(spec)} have nothing to "
        f"train: an optimizer update has {samples} samples (schedule.promptsPerBatch * "
        f"rollout.samplesPerPrompt), and each is on {each * spec.training.parallel.tensor_parallel}. Raise "
        "schedule.promptsPerBatch, take fewer ranks, or let them share samples by need "
        "(parallel.contextParallel: {hybrid: {}})",
    )


def _optimizer_without_cpus(job: RLJob) -> Iterator[Problem]:
    trainer = job.spec.pools.trainer
    if job.spec.training.parallel.cpu_offload and trainer.threads == 1:
        shared = f" for the {trainer.processes} ranks of a worker" if trainer.processes > 1 else ""
        yield Problem(
            ("spec", "pools", "trainer", "cpusPerWorker"),
            f"is {trainer.cpus_per_worker}{shared}, and with training.parallel.cpuOffload each rank of the "
            "trainer makes its updates on a single CPU thread, for which its accelerator waits: set it to "
            "the CPUs that a worker can have, for a large model 8 or more for each of its ranks",
        )


def _engines_without_cpus(job: RLJob) -> Iterator[Problem]:
    pool = job.spec.pools.fast_rollout
    if 1 < pool.engines_per_accelerator > pool.cpus_per_worker:
        yield Problem(
            ("spec", "pools", "fastRollout", "cpusPerWorker"),
            f"is {pool.cpus_per_worker}, and each of the {pool.engines_per_accelerator} engines of an "
            "accelerator (enginesPerAccelerator) decides its steps on a CPU of its own: set it to "
            f"{pool.engines_per_accelerator + 1} or more, or a cluster may give their pods no more",
        )


def _slow_drafts(job: RLJob) -> Iterator[Problem]:
    engine = job.spec.training.rollout.engine.vllm
    if job.spec.accelerator == "nvidia" and engine is not None and engine.speculation is not None:
        yield Problem(
            (*_TRAINING, "rollout", "engine", "vllm", "speculation"),
            "made the models that were tried slower on a GPU, whose random texts leave little to draft "
            "(docs/measurements.md). Take it out, unless your own model is faster with it",
        )


def _high_temperatures(training: Training) -> Iterator[Problem]:
    if training.rollout.engine.vllm is None:
        return
    evaluation = training.evaluation
    evaluated_at = None if evaluation is None else evaluation.sampling.temperature
    for path, temperature in (
        (("rollout", "temperature"), training.rollout.temperature),
        (("evaluation", "sampling", "temperature"), evaluated_at),
    ):
        if temperature is not None and temperature > _HOTTEST:
            yield Problem(
                (*_TRAINING, *path),
                f"is {temperature:g}, and vLLM 0.32 refuses each request above {_HOTTEST:g}: set it to "
                f"{_HOTTEST:g} or less, unless the engines' vLLM is an older one (0.22 takes it)",
            )
