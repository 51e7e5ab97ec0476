"""A runtime in memory, one step at a time: the driver of an RLJob as the operator notices it.

Guarantees: it uses every rollout pod that has started, busy from then on, releases as many as the spec asks
for, and takes one back only by a write that the API server would refuse if the operator had listed the pod
meanwhile. Its trainer stops for another size as the real one does (`driver.trainer_size`), and starts when
there are as many pods and the operator is not about to change that: its status is up to date with the spec
and lists no resize of the trainer.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime

from rljob_api.status import CheckpointStatus, TrainingStatus
from rljob_operator.plan.attempt import dead
from rljob_operator.plan.observed import ContainerEnd, Job, Pod, Pool
from rljob_operator.plan.pools import wanted
from rljob_runtime.driver.trainer_size import trainer_size
from rljob_runtime.site.desired import DesiredState
from tests.support.operator.simulated_objects import SimulatedObjects

TOTAL_STEPS = 100


@dataclass
class Runtime:
    """The driver of one attempt."""

    attempt: int
    in_use: set[str] = field(default_factory=set)
    """Rollout pods that serve requests."""
    released: list[str] = field(default_factory=list)
    ranks: frozenset[str] = frozenset()
    """Trainer pods whose ranks run; empty while the trainer stands still."""
    size: int = 0
    """Workers that the trainer is to run on, as it was last looked at."""
    placed: int = 0
    """Workers that its ranks last ran on; 0 before the first time."""
    stopped_for: int | None = None
    suspended_at: int | None = None
    step: int = 0
    checkpoint: int = 0
    generation: int = 0


class SimulatedRuntime(SimulatedObjects):
    """The objects, and the driver of the attempt that runs."""

    def __init__(self, job: Job, now: datetime) -> None:
        super().__init__(job, now)
        self.runtime: Runtime | None = None
        self.checkpoint = 0
        """Step of the newest checkpoint in the run folder."""

    def start_driver(self, attempt: int) -> None:
        """The driver begins, at the newest checkpoint."""
        self.runtime = Runtime(attempt, step=self.checkpoint, checkpoint=self.checkpoint)

    def end_driver(self, code: int, message: str = "") -> None:
        """The driver of the running attempt exits."""
        head = self.driving_head()
        if head is None or self.runtime is None:
            return
        end = ContainerEnd(code, "Completed" if code == 0 else "Error", message, self.now)
        self.pods[head.name] = replace(head, driver=end, ready=False)
        self.driver_gone(head.attempt)

    def complete(self) -> None:
        """The driver of the running attempt says that the job is done, after its last report."""
        runtime = self.runtime
        if runtime is None or self.job is None or self.driving_head() is None:
            return
        runtime.step = runtime.checkpoint = self.checkpoint = TOTAL_STEPS
        self.write_training(self._report(runtime), self.version)
        training = self.job.status.training
        assert training is not None
        status = self.job.status.model_copy(
            update={"training": training.model_copy(update={"completed": True})}
        )
        self.put_job(replace(self.job, status=status))

    def kill_head(self) -> None:
        """Ray's head uses up its memory; the driver ends with it."""
        head = self.driving_head()
        if head is not None:
            self.end_driver(1, "lost the connection to Ray")
            end = ContainerEnd(137, "OOMKilled", "", self.now)
            self.pods[head.name] = replace(self.pods[head.name], main=end)

    def driving_head(self) -> Pod | None:
        """The head pod in which the driver runs."""
        if self.runtime is None:
            return None
        attempt = self.runtime.attempt
        heads = (pod for pod in self.pods.values() if pod.role == "head" and pod.attempt == attempt)
        return next((pod for pod in heads if pod.phase == "Running" and pod.driver is None), None)

    def driver_gone(self, attempt: int) -> None:
        """The head pod of an attempt is lost, and its driver with it."""
        if self.runtime is not None and self.runtime.attempt == attempt:
            self.runtime = None

    def busy(self, pod: Pod) -> bool:
        """Whether the pod holds work that is lost with it."""
        return self.runtime is not None and (
            pod.name in self.runtime.in_use or pod.name in self.runtime.ranks
        )

    def runtime_step(self) -> None:
        """The driver looks at its RLJob and at Ray's nodes, acts, and writes what changed."""
        runtime, job = self.runtime, self.job
        if runtime is None or job is None or job.spec is None:
            return
        version = self.version
        if job.spec.suspend:
            self._suspend(runtime)
        else:
            self._train(runtime, job)
            for pool in ("fastRollout", "heavyRollout"):
                self._serve(runtime, job, pool)
            self._rank(runtime, job)
        # Said with everything that was done for it, in one write.
        runtime.generation = job.generation
        self.write_training(self._report(runtime), version)

    def _suspend(self, runtime: Runtime) -> None:
        """The driver writes a checkpoint, ends all parts, and says at which step."""
        runtime.in_use, runtime.ranks = set(), frozenset()
        runtime.checkpoint = self.checkpoint = runtime.step
        runtime.suspended_at = runtime.step

    def _train(self, runtime: Runtime, job: Job) -> None:
        if runtime.ranks and runtime.in_use and runtime.step < TOTAL_STEPS:
            runtime.step += 1

    def _serve(self, runtime: Runtime, job: Job, pool: Pool) -> None:
        assert job.spec is not None
        nodes = self._nodes(runtime, pool)
        # Pods that are gone are forgotten.
        others = {name for name in runtime.in_use | set(runtime.released) if name not in self.pods}
        runtime.in_use -= others
        runtime.released = [name for name in runtime.released if name not in others]
        taken = {name for entry in job.status.scale_downs for name in entry.victims}
        want = wanted(job.spec, pool)
        # First what serves, then pods that are new: used up to the wish, released beyond it.
        serving = sorted(name for name in nodes if name in runtime.in_use)
        spare = sorted(name for name in nodes if name not in runtime.in_use and name not in runtime.released)
        for name in spare:
            if len(serving) < want and name not in taken:
                serving.append(name)
                runtime.in_use.add(name)
            else:
                runtime.released.append(name)
        # Too many serve: the last are released.
        for name in serving[want:]:
            runtime.in_use.discard(name)
            runtime.released.append(name)
        # Too few: released pods that nobody is removing yet are taken back.
        back = [name for name in runtime.released if name in nodes and name not in taken]
        for name in back[: max(want - len(serving), 0)]:
            runtime.released.remove(name)
            runtime.in_use.add(name)

    def _rank(self, runtime: Runtime, job: Job) -> None:
        assert job.spec is not None
        nodes = frozenset(self._nodes(runtime, "trainer"))
        want = runtime.size = self._trainer_size(runtime, job, len(nodes))
        # A lost rank, or another size: the trainer stops with a checkpoint.
        if runtime.ranks and (not runtime.ranks <= nodes or len(runtime.ranks) != want):
            runtime.checkpoint = self.checkpoint = runtime.step
            runtime.ranks = frozenset()
        settled = job.status.observed_generation == job.generation and not any(
            entry.pool == "trainer" for entry in job.status.scale_downs
        )
        if not runtime.ranks and len(nodes) == want and settled:
            runtime.ranks, runtime.placed = nodes, want
        runtime.stopped_for = None if runtime.ranks else want

    def _trainer_size(self, runtime: Runtime, job: Job, there: int) -> int:
        assert job.spec is not None
        sizes = [entry.replicas for entry in job.status.scale_downs if entry.pool == "trainer"]
        desired = DesiredState(
            job.generation, wanted(job.spec, "trainer"), 0, 0,
            operator_at=job.status.observed_generation or 0,
            trainer_resize=next(iter(sizes), None),
            refused=any(
                (each.type, each.status) == ("Accepted", "False") for each in job.status.conditions
            ),
        )  # fmt: skip
        return trainer_size(desired, runtime.size, runtime.placed, there)

    def _nodes(self, runtime: Runtime, pool: Pool) -> list[str]:
        return [
            pod.name
            for pod in self.pods.values()
            if pod.role == pool
            and pod.attempt == runtime.attempt
            and pod.phase == "Running"
            and not dead(pod)
        ]

    def _report(self, runtime: Runtime) -> TrainingStatus:
        return TrainingStatus(
            attempt=runtime.attempt,
            observed_generation=runtime.generation,
            step=runtime.step,
            total_steps=TOTAL_STEPS,
            weight_version=runtime.step,
            checkpoint=CheckpointStatus(step=runtime.checkpoint, path="") if runtime.checkpoint else None,
            released=list(runtime.released),
            trainer_stopped_for=runtime.stopped_for,
            suspended_at_step=runtime.suspended_at,
        )
