"""Which accelerators of one machine each worker has, where the job asks for more of them than there are.

Guarantees: the workers of a pool are spread over all devices before two of them share one, and no device has
two workers more than another while every pool has the size that the manifest says. So the devices of the
trainer, which would wait for responses, generate as well. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_api import RLJob


@dataclass(frozen=True)
class SharedDevices:
    """The devices that workers share."""

    ids: Sequence[str]
    """As the vendor's variable names them (CUDA_VISIBLE_DEVICES)."""
    firsts: Mapping[str, int]
    """Accelerators that are asked for before the pool's own, in the order trainer, fast, heavy."""
    accelerators: Mapping[str, int]
    """That a worker of each pool asks for."""

    def of(self, pool: str, number: int) -> str:
        """The devices of worker `number` of a pool ("trainer", whose workers are ranks here, "fast" or
        "heavy"), as the vendor's variable takes them. Workers start from 0."""
        each = self.accelerators[pool]
        first = self.firsts[pool] + number * each
        # In the order of `ids`: torch-npu sees no device where they do not ascend.
        return ",".join(
            self.ids[place] for place in sorted((first + of) % len(self.ids) for of in range(each))
        )


def shared_devices(job: RLJob, ids: Sequence[str], share: bool) -> SharedDevices | None:
    """What workers share of the devices `ids`; None where each has its own: `share` is not allowed, or there
    are as many as the job asks for."""
    pools = job.spec.pools
    # A rank has one device, however many its pod has.
    accelerators = {
        "trainer": 1,
        "fast": pools.fast_rollout.accelerators_per_worker,
        "heavy": pools.heavy_rollout.accelerators_per_worker,
    }
    trainer, fast = job.spec.trainer_ranks, pools.fast_rollout.replicas * accelerators["fast"]
    asked = trainer + fast + pools.heavy_rollout.replicas * accelerators["heavy"]
    # A job on CPUs asks for accelerators of no kind, whatever accelerator its machine may have.
    if not share or job.spec.accelerator == "cpu" or asked <= len(ids):
        return None
    return SharedDevices(ids, {"trainer": 0, "fast": trainer, "heavy": trainer + fast}, accelerators)
