"""Rendered objects, and the parts of them that tests look at."""

from rljob_api import RLJob
from rljob_operator.render import JobKey, KubeRay, ray_cluster
from tests.support.jobs import job

KEY = JobKey("research", "math-grpo", "5f1b7a52-7c0f-4a4e-9a55-2f6f4f0c9d11")
NEW, OLD = KubeRay.of_version("1.6.2"), KubeRay.of_version("1.4.2")
GROUPS = ["trainer", "fast-rollout", "heavy-rollout"]
NVIDIA = {
    "accelerator": "nvidia",
    "pools.trainer": {"replicas": 2, "acceleratorsPerWorker": 8},
    "storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}},
    "pools.heavyRollout": {"replicas": 1, "acceleratorsPerWorker": 4},
}
ASCEND = {"accelerator": "ascend", "pools.trainer.acceleratorsPerWorker": 8}


def spec(changes=None):
    return RLJob.model_validate(job({"image": "rljob/runtime:1", **(changes or {})})).spec


def cluster(changes=None, kuberay=NEW, attempt=1):
    return ray_cluster(KEY, spec(changes), attempt, kuberay)


def group(rendered, name):
    if name == "head":
        return rendered["spec"]["headGroupSpec"]
    [found] = [each for each in rendered["spec"]["workerGroupSpecs"] if each["groupName"] == name]
    return found


def pod(rendered, name):
    return group(rendered, name)["template"]["spec"]


def containers(rendered, name="head"):
    return {each["name"]: each for each in pod(rendered, name)["containers"]}


def environment(container):
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def volume(rendered, name, called):
    [found] = [each for each in pod(rendered, name)["volumes"] if each["name"] == called]
    return found
