"""NVIDIA GPUs, as the device plugin of NVIDIA or its GPU operator offers them.

The runtime class, node selectors by GPU model, InfiniBand and topology are the cluster's own: they come by
the pools' templates.
"""

from rljob_api import Spec
from rljob_operator.render.merge import Template


class Nvidia:
    """NVIDIA GPUs."""

    resource: str | None = "nvidia.com/gpu"
    ray_resource: str | None = "GPU"

    def worker(self, spec: Spec) -> Template:
        """Nodes whose GPUs are kept for who asks for them are tainted with `nvidia.com/gpu`, or with the
        resource's own name (the convention of the ExtendedResourceToleration admission plugin)."""
        # Sorted: the same RLJob is rendered the same each time.
        taints = sorted({"nvidia.com/gpu", spec.resource_name or "nvidia.com/gpu"})
        tolerations = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in taints]
        return {"spec": {"tolerations": tolerations}}

    def hidden(self) -> list[dict[str, str]]:
        """CUDA images ask for all GPUs of the machine, and NVIDIA's container runtime gives them to a
        container that has asked Kubernetes for none."""
        return [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
