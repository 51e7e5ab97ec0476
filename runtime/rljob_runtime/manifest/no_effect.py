"""Fields of a manifest that are valid and change nothing beside what else it says: each is a warning.

Pure.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from rljob_api import RLJob
from rljob_api.errors import Path, Problem
from rljob_api.job import Spec
from rljob_api.rollout import VllmEngine
from rljob_api.training import Training
from rljob_runtime.groups.oversampling import surplus_groups
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.routing.probe import heavy_count

_TRAINING = ("spec", "training")


def without_effect(job: RLJob) -> Iterator[Problem]:
    """What is set and does nothing, and why."""
    spec = job.spec
    yield from _shared_accelerators(spec)
    yield from _probed_cohorts(spec)
    yield from _cohorts_beyond_admission(spec)
    yield from _surplus_without_places(spec)
    yield from _fractions_of_a_group(spec)
    yield from _queue_of_a_step(spec)
    yield from _masks_of_nothing(spec)
    yield from _kept_caches(spec)
    yield from _unshared_samples(spec)
    yield from _unheld_weights(spec)
    yield from _memory_of_others(spec)
    yield from _sizes_of_no_step(spec)
    yield from _delays_without_graphs(spec)
    yield from _repeated(spec)


def _shared_accelerators(spec: Spec) -> Iterator[Problem]:
    pool, most = spec.pools.fast_rollout, spec.training.rollout.max_running_requests
    path = ("spec", "pools", "fastRollout", "enginesPerAccelerator")
    if pool.engines_per_accelerator == 1:
        return
    if not pool.replicas and pool.max_replicas is None:
        yield Problem(
            path,
            f"is {pool.engines_per_accelerator}, and the fast pool has no workers (replicas is 0): engines "
            "of the heavy pool share no accelerator. Take it out, or give the fast pool workers",
        )
    elif pool.engines_per_accelerator > most:
        yield Problem(
            path,
            f"is {pool.engines_per_accelerator}, above the requests that these engines run at a time in all "
            f"(rollout.maxRunningRequests: {most}), so that some always stand idle: lower it, or raise that",
        )


def _probed_cohorts(spec: Spec) -> Iterator[Problem]:
    routing = spec.training.rollout.routing
    if routing is None or routing.probe is None:
        return
    prompts = routing.probe.cohort_prompts or spec.training.groups_per_step
    if heavy_count(prompts, routing.probe.heavy_share) == prompts:
        yield Problem(
            (*_TRAINING, "rollout", "routing", "probe", "heavyShare"),
            f"is {routing.probe.heavy_share:g}, which is rounded to all {prompts} prompts of a cohort: the "
            "fast pool runs probes alone, and no response has a cap. Lower it",
        )


def _cohorts_beyond_admission(spec: Spec) -> Iterator[Problem]:
    routing = spec.training.rollout.routing
    if routing is None or routing.probe is None or routing.probe.cohort_prompts is None:
        return
    asked, share, most = routing.probe.cohort_prompts, routing.probe.heavy_share, _under_way(spec.training)
    if asked <= most:
        return
    why, more = ": prompts are compared only once the fast pool has nothing else to do", ""
    if heavy_count(most, share) == 0:
        why = f", of which heavyShare {share:g} is rounded to none: no response goes to the heavy pool, and"
        why, more = f"{why} none has a cap", ", and raise heavyShare"
    yield Problem(
        (*_TRAINING, "rollout", "routing", "probe", "cohortPrompts"),
        f"is {asked}, and no more than {most} prompts are under way at a time (async.maxStaleness, "
        f"async.queueCapacity), so that no cohort is ever whole{why}. Set it to {most} or less, or leave it "
        f"out{more}",
    )


def _surplus_without_places(spec: Spec) -> Iterator[Problem]:
    training = spec.training
    capacity, samples = training.async_.queue_capacity, training.rollout.samples_per_prompt
    if training.rollout.over_sampling is None or capacity is None:
        return
    admitted = Bound.of(training).most_outstanding
    if capacity // samples <= admitted:
        yield Problem(
            (*_TRAINING, "rollout", "overSampling"),
            f"begins groups beyond the {admitted} that async.maxStaleness admits, and async.queueCapacity "
            f"has places for {capacity // samples} ({capacity} samples), so that none is begun: raise that "
            f"to {(admitted + 1) * samples} or more, or leave one of them out",
        )


def _fractions_of_a_group(spec: Spec) -> Iterator[Problem]:
    training, bound = spec.training, spec.training.async_.max_staleness
    if bound == 0 or _ahead(training):
        return
    groups = _of_a_version(training)
    yield Problem(
        (*_TRAINING, "async", "maxStaleness"),
        f"is {bound:g}, less than one of the {groups} prompts of a weight version, so that none is begun "
        f"ahead: the same as 0. Set it to {_tidy(1 / groups)} or more, or to 0",
    )


def _queue_of_a_step(spec: Spec) -> Iterator[Problem]:
    training, groups = spec.training, spec.training.groups_per_step
    if not _ahead(training) or _under_way(training) > groups:
        return
    samples = training.rollout.samples_per_prompt
    yield Problem(
        (*_TRAINING, "async", "queueCapacity"),
        f"is {training.async_.queue_capacity}, which has places for the {groups} prompts of one step: "
        "engines begin nothing while it is trained, whatever async.maxStaleness "
        f"({training.async_.max_staleness:g}) admits. Raise it to {(groups + 1) * samples} or more, or leave "
        "it out",
    )


def _masks_of_nothing(spec: Spec) -> Iterator[Problem]:
    training = spec.training
    if training.async_.stale_tokens == "wait" or (
        _ahead(training) and _under_way(training) > training.groups_per_step
    ):
        return
    cause = "maxStaleness" if not _ahead(training) else "queueCapacity"
    yield Problem(
        (*_TRAINING, "async", "staleTokens"),
        f"is mask, and with this async.{cause} each step trains all that is under way, so that nothing "
        "outlives the bound: take it out, or raise that",
    )


def _kept_caches(spec: Spec) -> Iterator[Problem]:
    training, push = spec.training, spec.training.async_.weight_sync.push
    if push is None or push.kv_after_update == "recompute" or _ahead(training):
        return
    # Of what is begun beyond a step something may still run when its weights come.
    if training.rollout.over_sampling is None:
        yield Problem(
            (*_TRAINING, "async", "weightSync", "push", "kvAfterUpdate"),
            f"is keep, and with async.maxStaleness {training.async_.max_staleness:g} no response is under "
            "way when new weights come: take it out, or raise that",
        )


def _ahead(training: Training) -> int:
    """How many prompts beyond those of a weight version async.maxStaleness lets begin."""
    return Bound.of(training).most_outstanding - _of_a_version(training)


def _under_way(training: Training) -> int:
    """Most prompts that are begun and neither trained nor aborted."""
    most, capacity = Bound.of(training).most_outstanding, training.async_.queue_capacity
    if (more := training.rollout.over_sampling) is not None:
        most += surplus_groups(more.rate, _of_a_version(training))
    return most if capacity is None else min(most, capacity // training.rollout.samples_per_prompt)


def _of_a_version(training: Training) -> int:
    return training.groups_per_step * training.async_.steps_per_version


def _tidy(share: float) -> str:
    """A share that is no less, of a few digits."""
    return f"{math.ceil(share * 10_000) / 10_000:g}"


def _unshared_samples(spec: Spec) -> Iterator[Problem]:
    given = spec.training.parallel.context_parallel
    if given is not None and given.none is not None and given.attention != "auto":
        yield Problem(
            (*_TRAINING, "parallel", "contextParallel", "attention"),
            f"is {given.attention}, and with none no ranks share a sample: take it out, or set fixed or "
            "hybrid",
        )


def _unheld_weights(spec: Spec) -> Iterator[Problem]:
    shared = spec.context_parallel.largest_degree(spec.data_ranks) > 1
    if spec.training.compute.hold_weights is False and shared:
        yield Problem(
            (*_TRAINING, "compute", "holdWeights"),
            "is false, and ranks that share samples (parallel.contextParallel) hold all weights during an "
            "update in any case: take it out, or let no samples be shared",
        )


def _memory_of_others(spec: Spec) -> Iterator[Problem]:
    """What says how much memory an engine takes on another kind of accelerator. That it is the default, which
    a cluster writes into every job, is nobody's choice."""
    given, usual = spec.training.rollout.engine.vllm, VllmEngine()
    if given is None:
        return
    path = (*_TRAINING, "rollout", "engine", "vllm")
    if spec.accelerator != "cpu" and given.kv_cache_gi_b != usual.kv_cache_gi_b:
        yield Problem(
            (*path, "kvCacheGiB"),
            f"is {given.kv_cache_gi_b:g}, and is for accelerator: cpu: on others the KV cache is what "
            "gpuMemoryUtilization leaves of an engine's memory. Take it out, and set that",
        )
    if spec.accelerator == "cpu" and given.gpu_memory_utilization != usual.gpu_memory_utilization:
        yield Problem(
            (*path, "gpuMemoryUtilization"),
            f"is {given.gpu_memory_utilization:g}, and engines on CPUs take main memory, of which kvCacheGiB "
            "is their KV cache: take it out, or set that",
        )


def _sizes_of_no_step(spec: Spec) -> Iterator[Problem]:
    given = spec.training.rollout.engine.vllm
    if given is None or given.max_batched_tokens is None:
        return
    most = given.max_batched_tokens
    above = sorted({size for size in given.capture_sizes or () if size > most})
    if above:
        yield Problem(
            (*_TRAINING, "rollout", "engine", "vllm", "captureSizes"),
            f"has {', '.join(map(str, above))}, and no step has more than {most} tokens (maxBatchedTokens): "
            "vLLM captures no graph for them. Take them out, or raise that",
        )


def _delays_without_graphs(spec: Spec) -> Iterator[Problem]:
    given = spec.training.rollout.engine.vllm
    if given is None or not given.delay_prefills or spec.accelerator != "ascend":
        return
    yield Problem(
        (*_TRAINING, "rollout", "engine", "vllm", "delayPrefills"),
        "is true, and on Ascend the scheduler is vllm-ascend's, in which prompts do not wait: take it out",
    )


def _repeated(spec: Spec) -> Iterator[Problem]:
    """What a list names again. vLLM captures one graph for each size, and so it is with the other lists."""
    for path, values in _sets(spec):
        again = [f"{value} ({times} times)" for value, times in Counter(values).items() if times > 1]
        if again:
            yield Problem(
                path,
                f"names {' and '.join(again)}: once is enough. Take it out where it stands again, or "
                "name what was meant there",
            )


def _sets(spec: Spec) -> Iterator[tuple[Path, Sequence[object]]]:
    """The lists in which an entry counts once, however often it stands there, by their places."""
    training = spec.training
    if (vllm := training.rollout.engine.vllm) is not None:
        yield (*_TRAINING, "rollout", "engine", "vllm", "captureSizes"), vllm.capture_sizes or ()
    if training.adapter is not None:
        yield (*_TRAINING, "adapter", "targetModules"), training.adapter.target_modules or ()
    yield (*_TRAINING, "data", "rewardFields"), training.data.reward_fields
    for index, source in enumerate(training.data.sources or ()):
        yield (*_TRAINING, "data", "sources", index, "rewardFields"), source.reward_fields or ()
    for index, held_out in enumerate(training.evaluation.sets if training.evaluation else ()):
        place = (*_TRAINING, "evaluation", "sets", index, "data", "rewardFields")
        yield place, held_out.data.reward_fields or ()
