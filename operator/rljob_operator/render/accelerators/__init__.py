"""What a kind of accelerator needs in pods.

Guarantees: everything in a pod that is particular to a kind of device is in that kind's file. A new kind is a
file here, a line in `_KINDS`, and a value of `spec.accelerator`.
"""

from typing import Protocol

from rljob_api import Spec
from rljob_operator.render.accelerators.ascend import Ascend
from rljob_operator.render.accelerators.cpu import Cpu
from rljob_operator.render.accelerators.nvidia import Nvidia
from rljob_operator.render.merge import Template


class Accelerator(Protocol):
    """One kind of device."""

    resource: str | None
    """Kubernetes resource of one device, where `spec.resourceName` does not name another; None without
    devices."""
    ray_resource: str | None
    """Ray's name of one device; None without devices."""

    def worker(self, spec: Spec) -> Template:
        """What is merged over the template of a pod that holds devices."""
        ...

    def hidden(self) -> list[dict[str, str]]:
        """Environment of containers that hold no devices, on machines that have some."""
        ...


_KINDS: dict[str, Accelerator] = {"nvidia": Nvidia(), "ascend": Ascend(), "cpu": Cpu()}


def accelerator(spec: Spec) -> Accelerator:
    """The kind of device of the job."""
    return _KINDS[spec.accelerator]


def device_resource(spec: Spec) -> str | None:
    """Kubernetes resource of one device of the job; None without devices."""
    return spec.resource_name or accelerator(spec).resource


def devices(spec: Spec, per_worker: int) -> dict[str, int]:
    """Devices of a worker, by their Kubernetes resource."""
    resource = device_resource(spec)
    return {resource: per_worker} if resource else {}


def ray_devices(spec: Spec, per_worker: int) -> dict[str, int]:
    """Devices that a worker's Ray node offers, by Ray's name. The number of GPUs is always
    said: Ray would else look for those of the machine."""
    name = accelerator(spec).ray_resource
    return {"GPU": 0} | ({name: per_worker} if name else {})
