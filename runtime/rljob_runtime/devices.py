"""Kinds of accelerators: everything that differs between CUDA GPUs, Ascend NPUs and CPUs.

Guarantees: no other module names a vendor's torch module, communication backend or visibility variable;
importing this one does not import torch.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Accelerator = Literal["nvidia", "ascend", "cpu"]


class DeviceMissing(RuntimeError):
    """The device is not there; the message says what was asked for and what is there."""


@dataclass(frozen=True)
class Devices:
    """The devices of one kind that this process can use."""

    accelerator: Accelerator
    torch_type: str
    """As in `torch.device(torch_type)`."""
    backend: str
    """Name of the devices' communication backend in torch.distributed."""
    visible_variable: str | None
    """Environment variable that restricts which devices a process sees."""
    ray_resource: str | None
    """Ray's name for one device; None for the CPU."""

    @classmethod
    def of(cls, accelerator: Accelerator) -> "Devices":
        """The devices of an RLJob's `accelerator`."""
        return _KINDS[accelerator]

    def device(self, index: int = 0) -> "torch.device":
        """Make device `index`, counted among the visible ones, the current one and return it.

        Raises `DeviceMissing` where there are fewer."""
        import torch

        if self.torch_type == "cpu":
            return torch.device("cpu")
        if index >= self.count():
            visible = f"{self.visible_variable}={os.environ.get(self.visible_variable or '', '(not set)')}"
            raise DeviceMissing(
                f"{self.accelerator} device {index} is not there: torch sees {self.count()} ({visible})"
            )
        # The current device is where collective libraries and kernels work unless told otherwise.
        self._module().set_device(index)
        return torch.device(self.torch_type, index)

    def count(self) -> int:
        """How many devices this process sees; 1 for the CPU."""
        return 1 if self.torch_type == "cpu" else int(self._module().device_count())

    def synchronize(self) -> None:
        """Wait until the current device has done what it was given."""
        if self.torch_type != "cpu":
            self._module().synchronize()

    def mark(self) -> Any:
        """A new mark for the current device's queue of work, which tells when the device comes to it: a
        `torch.Event` with timing. Not for the CPU, which has no queue."""
        return self._module().Event(enable_timing=True)

    def pci_address(self, index: int = 0) -> str | None:
        """Where device `index` is attached, as Linux writes it ("0000:1b:00.0"); None where that is not
        known."""
        if self.torch_type != "cuda":
            return None
        found = self._module().get_device_properties(index)
        if not hasattr(found, "pci_bus_id"):
            return None
        return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the current device; of the machine's memory for the CPU."""
        if self.torch_type != "cpu":
            free, total = self._module().mem_get_info()
            return int(free), int(total)
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page

    def use(self, index: int) -> tuple[float, int]:
        """Share of the newest moments, 0 to 1, in which device `index` (among the visible ones) computed, and
        bytes of its memory that are in use, by whomever; for an NVIDIA device by NVML, so that a process that
        computes nothing on it takes none of its memory for the question. Not for the CPU."""
        module = self._module()
        if self.torch_type == "cuda":
            return module.utilization(index) / 100, int(module.device_memory_used(index))
        free, total = module.mem_get_info(index)
        return module.utilization(index) / 100, int(total - free)

    def seed(self, seed: int) -> None:
        """Seed torch's generators of the CPU and of all devices."""
        import torch

        torch.manual_seed(seed)

    def generator_state(self) -> bytes:
        """State of the current device's generator; empty for the CPU, whose generator is torch's own."""
        return b"" if self.torch_type == "cpu" else self._module().get_rng_state().numpy().tobytes()

    def set_generator_state(self, state: bytes) -> None:
        """Go on from `generator_state`."""
        import torch

        if self.torch_type != "cpu":
            # Copied into a bytearray: torch warns of memory that cannot be written to.
            self._module().set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def _module(self) -> Any:
        import torch

        if self.torch_type == "npu":
            import torch_npu  # noqa: F401 - registers torch.npu
        return getattr(torch, self.torch_type)


_KINDS: dict[Accelerator, Devices] = {
    "nvidia": Devices("nvidia", "cuda", "nccl", "CUDA_VISIBLE_DEVICES", "GPU"),
    "ascend": Devices("ascend", "npu", "hccl", "ASCEND_RT_VISIBLE_DEVICES", "NPU"),
    "cpu": Devices("cpu", "cpu", "gloo", None, None),
}
