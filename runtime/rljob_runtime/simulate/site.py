"""A simulated site: the engines, the trainer and the bound of an RLJob, under assumptions. Pure."""

import math
from dataclasses import dataclass
from typing import Any

from rljob_api.base import describe
from rljob_api.job import Spec
from rljob_api.routing import Routing
from rljob_api.training import Training
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.parallel.busy_ranks import busy_ranks
from rljob_runtime.routing.choose import policy_of
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.gears import capture_sizes
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.simulate.assumptions import Assumptions, EngineCost
from rljob_runtime.simulate.job import JobModel, simulate_job
from rljob_runtime.simulate.measured_plans import MeasuredPlans
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import LengthModel, ToolWaits, Workload

_SPEED_UP = 0.7
"""An engine on k times the accelerators is k to this power as fast: tensor parallelism shares the work and
adds messages."""
_REPORTS = 50
"""Reports of lengths so far while a mean response is generated."""


@dataclass(frozen=True)
class Sizes:
    """Workers of each pool."""

    trainer: int
    fast: int
    heavy: int

    @classmethod
    def of(cls, spec: Spec) -> "Sizes":
        pools = spec.pools
        return cls(pools.trainer.replicas, pools.fast_rollout.replicas, pools.heavy_rollout.replicas)

    def applied(self, spec: Spec) -> Spec:
        """The job with pools of these sizes, and without bounds on them; as it is with its own."""
        if self == Sizes.of(spec):
            return spec
        pools = spec.pools
        free: dict[str, Any] = {"min_replicas": None, "max_replicas": None}
        return spec.model_copy(
            update={
                "pools": pools.model_copy(
                    update={
                        "trainer": pools.trainer.model_copy(update={"replicas": self.trainer}),
                        "fast_rollout": pools.fast_rollout.model_copy(update={"replicas": self.fast, **free}),
                        "heavy_rollout": pools.heavy_rollout.model_copy(
                            update={"replicas": self.heavy, **free}
                        ),
                    }
                )
            }
        )

    def refusal(self, spec: Spec) -> str | None:
        """Why the job may not have pools of these sizes, or None. It may have its own."""
        if self == Sizes.of(spec):
            return None
        applied = self.applied(spec)
        broken = (rule for rule in Spec.all_rules() if not rule.holds(applied))
        return next((describe(rule, applied) for rule in broken), None)

    def accelerators(self, spec: Spec) -> int:
        """Accelerators that these workers have together."""
        pools = spec.pools
        return (
            self.trainer * pools.trainer.accelerators_per_worker
            + self.fast * pools.fast_rollout.accelerators_per_worker
            + self.heavy * pools.heavy_rollout.accelerators_per_worker
        )


@dataclass(frozen=True)
class Site:
    """What is simulated."""

    spec: Spec
    assumptions: Assumptions
    steps: int
    """Training steps."""

    @property
    def groups(self) -> int:
        """Groups of all steps."""
        return self.steps * self.spec.training.groups_per_step

    @property
    def mean_tokens(self) -> float:
        """Assumed mean response."""
        rollout, lengths = self.spec.training.rollout, self.assumptions.lengths
        return rollout.max_response_tokens / 4 if lengths.mean is None else lengths.mean

    def lengths(self) -> LengthModel:
        """The assumed lengths. Raises `ValueError` where they contradict the job."""
        training, lengths = self.spec.training, self.assumptions.lengths
        cap = training.rollout.max_response_tokens
        prompts = lengths.prompt_tokens or max(1, training.data.max_prompt_tokens // 2)
        mean = max(1.0, self.mean_tokens)
        return LengthModel(mean, cap, lengths.between_prompts, lengths.within_prompt, lengths.order, prompts)

    @property
    def waits(self) -> ToolWaits | None:
        """The assumed tool calls."""
        tools = self.assumptions.tools
        return None if tools is None else ToolWaits(tools.every_tokens, tools.seconds)

    def draw(self, seed: int) -> Workload:
        """A workload of the assumed lengths."""
        samples = self.spec.training.rollout.samples_per_prompt
        return self.lengths().draw(self.groups, samples, seed, self.waits)

    def shapes(self) -> list[EngineShape]:
        """The engines, fast ones first."""
        pools, engines = self.spec.pools, self.assumptions.engines
        limit = self.spec.training.rollout.max_running_requests
        ratio = pools.heavy_rollout.accelerators_per_worker / pools.fast_rollout.accelerators_per_worker
        gears = self._gears(pools.fast_rollout.engines_per_accelerator)
        fast = EngineShape(
            "fast", limit, engines.fast.kv_tokens, self._cost(engines.fast, gears), lockstep=engines.lockstep
        )
        gears = self._gears(1)
        heavy = fast._replace(
            pool="heavy",
            kv_tokens=None if fast.kv_tokens is None else int(fast.kv_tokens * ratio),
            cost=self._cost(engines.fast, gears, ratio**_SPEED_UP),
        )
        if engines.heavy is not None:
            heavy = heavy._replace(kv_tokens=engines.heavy.kv_tokens, cost=self._cost(engines.heavy, gears))
        return [fast] * pools.fast_rollout.replicas + [heavy] * pools.heavy_rollout.replicas

    def _cost(self, cost: EngineCost, gears: tuple[int, ...], speed: float = 1.0) -> StepCost:
        copied = self.physics().copied_token_seconds
        return step_cost(cost, gears, speed)._replace(per_copied_token=copied)

    def _gears(self, engines: int) -> tuple[int, ...]:
        """Batch sizes with a captured graph, as so many engines of a worker have them together: requests are
        spread evenly over those that share an accelerator."""
        rollout = self.spec.training.rollout
        vllm = rollout.engine.vllm
        if vllm is not None and vllm.enforce_eager:
            return ()
        if vllm is not None and vllm.capture_sizes is not None:
            sizes = tuple(vllm.capture_sizes)
        else:
            sizes = capture_sizes(math.ceil(rollout.max_running_requests / engines))
        return tuple(engines * size for size in sizes)

    def physics(self) -> Physics:
        """How the engines behave."""
        engines, moves = self.assumptions.engines, self.assumptions.moves
        return Physics(
            lockstep=engines.lockstep,
            admission_seconds=engines.admission_seconds,
            copy_bytes_per_second=moves.copy_bytes_per_second,
            kv_bytes_per_token=moves.kv_bytes_per_token,
            report_seconds=max(0.1, self._typical_step * self.mean_tokens / _REPORTS),
        )

    @property
    def _typical_step(self) -> float:
        """Seconds of a decode step of half the requests that an engine runs at most, each halfway through a
        mean response."""
        engines, spec = self.assumptions.engines, self.spec
        alone = not spec.pools.fast_rollout.replicas
        step = engines.heavy if alone and engines.heavy is not None else engines.fast
        # Fewer where the job has fewer: those of a step, over all engines.
        training, workers = (
            spec.training,
            spec.pools.fast_rollout.replicas + spec.pools.heavy_rollout.replicas,
        )
        samples = training.groups_per_step * training.rollout.samples_per_prompt / max(1, workers)
        running = max(1, min(math.ceil(samples), training.rollout.max_running_requests) // 2)
        each = self.assumptions.lengths.prompt_tokens or max(1, training.data.max_prompt_tokens // 2)
        kv = running * (each + self.mean_tokens / 2)
        if step.kv_tokens is not None:
            kv = min(kv, step.kv_tokens)
        return step_cost(step, ()).step(running, kv)

    def job(self) -> JobModel:
        """Trainer, weight updates, bound."""
        training = self.spec.training
        capacity = training.async_.queue_capacity
        return JobModel(
            bound=Bound.of(training),
            steps=self.steps,
            trainer_seconds=self.assumptions.trainer.seconds_per_step,
            trainer_seconds_per_token=self.assumptions.trainer.seconds_per_token / busy_ranks(self.spec),
            publish_seconds=self.assumptions.weight_publish_seconds,
            delivery_seconds=self.assumptions.weight_delivery_seconds,
            sync_seconds=self.assumptions.weight_sync_seconds,
            trainer_sends=self._trainer_sends(),
            recompute_kv=_recomputes_kv(training),
            capacity_groups=None if capacity is None else capacity // training.rollout.samples_per_prompt,
        )

    def _trainer_sends(self) -> bool:
        """Whether the trainer takes part until engines have a version: by what is assumed, else unless
        versions are certainly stored for them. Where workers share the GPUs of one machine auto stores them,
        too; what a job will find is not known here."""
        if self.assumptions.trainer_sends_weights is not None:
            return self.assumptions.trainer_sends_weights
        training, spec = self.spec.training, self.spec
        sync = training.async_.weight_sync
        if sync.transport != "auto":
            return sync.transport in ("nccl", "hccl")
        shared = spec.pools.fast_rollout.engines_per_accelerator > 1
        return not (spec.accelerator == "cpu" or sync.pull or training.adapter or shared)

    def run(self, workload: Workload) -> Outcome:
        """Simulate the job. Raises `ValueError` for what cannot be."""
        plans = self.plans()
        return simulate_job(workload, self.shapes(), self.physics(), plans, self.job(), plans.paused)

    def plans(self) -> MeasuredPlans:
        """Who decides where requests run: the job's policy, which knows of the engines what they measure."""
        return MeasuredPlans(policy_of(self.spec))


def _recomputes_kv(training: Training) -> bool:
    """Whether a weight update costs the prefill of what runs."""
    push = training.async_.weight_sync.push
    if push is None or push.in_flight == "wait":
        return False
    # What is taken out is submitted again, with what it has. What is frozen may keep its KV; with an adapter
    # nothing is frozen.
    frozen = push.in_flight == "keep"
    return not (frozen and (push.kv_after_update == "keep" or training.adapter is not None))


def step_cost(cost: EngineCost, gears: tuple[int, ...], speed: float = 1.0) -> StepCost:
    """The same as a cost of `routing`, of an engine that is so many times as fast. `gears`: its batch sizes
    with a captured graph, where `cost` does not say."""
    return StepCost(
        fixed=cost.fixed_seconds / speed,
        per_request=cost.seconds_per_request / speed,
        per_kv_token=cost.seconds_per_kv_token / speed,
        per_prefill_token=cost.seconds_per_prefill_token / speed,
        gears=gears if cost.graphs is None else tuple(cost.graphs),
    )


def routed(spec: Spec, policy: str) -> Spec:
    """The job with the policy of this name in rollout.routing; as it is set, where it is the job's own."""
    rollout = spec.training.rollout
    if rollout.routing is not None and rollout.routing.yaml_choice == policy:
        return spec
    other = rollout.model_copy(update={"routing": Routing.model_validate({policy: {}})})
    return spec.model_copy(update={"training": spec.training.model_copy(update={"rollout": other})})


def allowed(spec: Spec) -> bool:
    """Whether a job may have the rollout.routing that this one has, of whose fields each is right."""
    models = (spec, spec.training, spec.training.rollout)
    return all(rule.holds(model) for model in models for rule in model.all_rules())
