"""Ascend NPUs, as the device plugins of MindCluster, HAMi or a cloud offer them.

With the device plugin and the Ascend container runtime a pod needs the resource alone, which is what every
job gets. `spec.acceleratorType` says that the nodes are labelled by MindCluster; then pods carry its labels
too. Volcano as scheduler, and host paths where the container runtime is missing, come by the pools'
templates: they are the cluster's own, and host paths leave the `restricted` Pod Security Standard.
"""

from rljob_api import Spec
from rljob_operator.render.merge import Template

_FAMILY = {
    "module": "ascend-910",
    "half": "ascend-910",
    "card": "ascend-910",
    "card-910b-2": "ascend-910b",
    "module-910b-8": "ascend-910b",
    "module-910b-16": "ascend-910b",
}
"""MindCluster's label `ring-controller.atlas`, by the node's `accelerator-type`."""


class Ascend:
    """Ascend NPUs."""

    resource: str | None = "huawei.com/Ascend910"
    ray_resource: str | None = "NPU"

    def worker(self, spec: Spec) -> Template:
        """Tolerates the taint that is named as the resource; with `acceleratorType`, MindCluster's labels."""
        taint = {"key": spec.resource_name or self.resource, "operator": "Exists", "effect": "NoSchedule"}
        template: Template = {"spec": {"tolerations": [taint]}}
        if spec.accelerator_type is not None:
            template["metadata"] = {"labels": {"ring-controller.atlas": _FAMILY[spec.accelerator_type]}}
            template["spec"]["nodeSelector"] = {"accelerator-type": spec.accelerator_type}
        return template

    def hidden(self) -> list[dict[str, str]]:
        """The container runtime shows no device that was not asked for, and perhaps no driver. torch loads
        torch_npu by itself, which may fail without one."""
        return [{"name": "TORCH_DEVICE_BACKEND_AUTOLOAD", "value": "0"}]
