"""How many ranks of a trainer an optimizer update can have work for. Pure."""

from rljob_api.job import Spec


def update_samples(spec: Spec) -> int:
    """Samples of an optimizer update."""
    return spec.training.schedule.prompts_per_batch * spec.training.rollout.samples_per_prompt


def busy_ranks(spec: Spec, trainer_ranks: int | None = None) -> int:
    """Most ranks of the trainer that have something to train in an update. A sample is on one rank, or on as
    many as share it; with tensor parallelism on each rank of as many groups. Ranks beyond that wait.
    `trainer_ranks`: of a trainer that has, or had, others than `spec` says."""
    asked, ranks, samples = spec.context_parallel, spec.data_ranks, update_samples(spec)
    if trainer_ranks is not None:
        ranks = max(1, trainer_ranks // spec.training.parallel.tensor_parallel)
    degree = asked.largest_degree(ranks)
    if asked.fixed is not None:
        # Those beyond the last whole group have nothing to train.
        ranks -= ranks % degree
    return min(ranks, samples * degree) * spec.training.parallel.tensor_parallel
