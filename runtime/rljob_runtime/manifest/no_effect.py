"""Fields of a manifest that are valid and change nothing beside what else it says: each is a warning.

Pure.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from rljob_api import RLJob
from rljob_api.errors import Path, Problem
from rljob_api.job import Spec
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.routing.probe import heavy_count

_TRAINING = ("spec", "training")


def without_effect(job: RLJob) -> Iterator[Problem]:
    """What is set and does nothing, and why."""
    spec = job.spec
    yield from _shared_accelerators(spec)
    yield from _probed_cohorts(spec)
    yield from _surplus_without_places(spec)
    yield from _kept_caches(spec)
    yield from _unshared_samples(spec)
    yield from _unheld_weights(spec)
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


def _kept_caches(spec: Spec) -> Iterator[Problem]:
    ahead, push = spec.training.async_, spec.training.async_.weight_sync.push
    if push is None or push.kv_after_update == "recompute" or ahead.max_staleness > 0:
        return
    # Of what is begun beyond a step something may still run when its weights come.
    if spec.training.rollout.over_sampling is None:
        yield Problem(
            (*_TRAINING, "async", "weightSync", "push", "kvAfterUpdate"),
            "is keep, and with async.maxStaleness 0 no response is under way when new weights come: take it "
            "out, or raise that",
        )


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
