"""What is refused before anything is made, and in which words; of templates: test_template_refusals.py."""

import re
from pathlib import Path

import pytest
import yaml

from rljob_api import Metadata
from rljob_operator.render import JobKey, KubeRay, objects, refusals
from rljob_operator.render.refusals import metadata_refusals
from rljob_operator.render.rewards import SOCKETS_PATH
from tests.support.operator.refused_specs import HEAD, POOLS, container, spec, template
from tests.support.valid_jobs import GOOD

KEY = JobKey("default", "test", "an-uid")

REFUSED = {
    "no image": (
        {"image": None},
        "spec.image",
        "missing for pools.head, pools.trainer, pools.fastRollout, pools.heavyRollout",
    ),
    "no image for one": (
        {"image": None}
        | {
            k: v
            for pool in ("trainer", "fastRollout", "heavyRollout")
            for k, v in container(pool, "ray-worker", image="a").items()
        },
        "spec.image",
        "(missing for pools.head)",
    ),
    "an image taken away": (
        container("trainer", "ray-worker", image=None),
        "spec.image",
        "(missing for pools.trainer)",
    ),
    "two volume sources": (
        {"storage.volume": {"nfs": {}, "hostPath": {}}},
        "spec.storage.volume",
        "must be one volume source (found nfs and hostPath)",
    ),
    "several trainer pods without a volume": (
        {"pools.trainer.replicas": 2},
        "spec.storage.volume",
        "must be set where pools.trainer.replicas is above 1 (found 2)",
    ),
    "several trainer pods with a volume for each": (
        {"pools.trainer.replicas": 2, "storage.volume": {"emptyDir": {}}},
        "spec.storage.volume",
        "must be set where pools.trainer.replicas is above 1 (found 2)",
    ),
    "several trainer pods with a checkpoint path in the job's own folder": (
        {"pools.trainer.replicas": 2, "training.checkpoint.path": "/rljob/checkpoints"},
        "spec.storage.volume",
        "ReadWriteMany",
    ),
    "several trainer pods with a checkpoint path relative to the job's own folder": (
        {"pools.trainer.replicas": 2, "training.checkpoint.path": "checkpoints"},
        "spec.storage.volume",
        "or set pools.trainer.replicas to 1",
    ),
    "a part of a device": (
        {"pools.trainer.resources": {"limits": {"rdma/hca": "500m"}}},
        f"{POOLS}.trainer.resources.limits.rdma/hca",
        "must be a whole number: Kubernetes gives no part of one (found 500m)",
    ),
    "a part of another vendor's accelerator": (
        {"pools.head.resources": {"requests": {"nvidia.com/gpu": "0.5"}}},
        f"{POOLS}.head.resources.requests.nvidia.com/gpu",
        "must be a whole number: Kubernetes gives no part of one (found 0.5)",
    ),
    "a part of a huge page": (
        {"pools.trainer.resources": {"limits": {"hugepages-2Mi": "3Mi"}}},
        f"{POOLS}.trainer.resources.limits.hugepages-2Mi",
        "must be a multiple of the page's size, as in its name (found 3Mi)",
    ),
    "huge pages of no size": (
        {"pools.trainer.resources": {"limits": {"hugepages-1/0": "4Mi"}}},
        f"{POOLS}.trainer.resources.limits.hugepages-1/0",
        "must be a multiple of the page's size, as in its name (found 4Mi)",
    ),
    "a volume's name": (
        {"storage.volume": {"name": "runs", "nfs": {}}},
        "spec.storage.volume.name",
        "must not be set: the volume's name is the operator's",
    ),
    "a mount over scratch": (
        {"storage.mountPath": "/tmp"},
        "spec.storage.mountPath",
        "must not overlap with /tmp",
    ),
    "a mount in shared memory": (
        {"storage.mountPath": "/dev/shm/x"},
        "spec.storage.mountPath",
        "must not overlap with /dev",
    ),
    "a mount over all of it": (
        {"storage.mountPath": "/var"},
        "spec.storage.mountPath",
        "must not overlap with /var/run",
    ),
    "a mount with dots": (
        {"storage.mountPath": "/a/../tmp"},
        "spec.storage.mountPath",
        "must be a plain absolute path",
    ),
    "a mount at the root": (
        {"storage.mountPath": "//"},
        "spec.storage.mountPath",
        "must be a plain absolute path",
    ),
    **{
        f"a mount over the image's {hidden}": (
            {"storage.mountPath": mount},
            "spec.storage.mountPath",
            f"must not hide {hidden} of the image, or parts of it: name a folder such as /rljob",
        )
        for mount, hidden in {
            "/usr": "/usr/bin",
            "/usr/lib/x": "/usr/lib",
            "/bin": "/bin",
            "/lib": "/lib",
            "/etc": "/etc",
            "/opt": "/opt/rljob",
            "/usr/local": "/usr/local",
            "/home": "/home",
        }.items()
    },
    "an image with white space": ({"image": "a b"}, "spec.image", "has no white space (found 'a b')"),
    "shared memory between pods": (
        {"training.async.weightSync": {"push": {}, "transport": "shm"}},
        "spec.training.async.weightSync.transport",
        "shm reaches one machine only, and pods share no memory: use auto in a cluster",
    ),
    "requests above limits": (
        {"pools.trainer.resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "2G"}}},
        f"{POOLS}.trainer.resources.requests.memory",
        "must not be above the limit of 2G (found 2Gi)",
    ),
    "a device that is overcommitted": (
        {"pools.trainer.resources": {"requests": {"rdma/hca": 1}, "limits": {"rdma/hca": 2}}},
        f"{POOLS}.trainer.resources.requests.rdma/hca",
        "must equal the limit of 2",
    ),
    "an unknown resource": (
        {"pools.head.resources": {"limits": {"gpu": 1}}},
        f"{POOLS}.head.resources.limits.gpu",
        "is no resource of Kubernetes: write cpu, memory",
    ),
    "another number of accelerators": (
        {"accelerator": "nvidia", "pools.trainer.resources": {"limits": {"nvidia.com/gpu": 2}}},
        f"{POOLS}.trainer.resources.limits.nvidia.com/gpu",
        "must be 1 (by acceleratorsPerWorker), or be left out (found 2)",
    ),
    "an accelerator for the head": (
        {"accelerator": "nvidia", "pools.head.resources": {"limits": {"nvidia.com/gpu": 1}}},
        f"{POOLS}.head.resources.limits.nvidia.com/gpu",
        "must be 0 (the head has no accelerators)",
    ),
    "shared memory above the memory": (
        {"pools.trainer": {"sharedMemory": "3Gi", "resources": {"limits": {"memory": "2Gi"}}}},
        f"{POOLS}.trainer.sharedMemory",
        "must not be above the memory limit of 2Gi, towards which it counts",
    ),
    "shared memory above the default limit": (
        {"pools.head": {"sharedMemory": "5Gi"}},
        f"{POOLS}.head.sharedMemory",
        "limit of 4Gi",
    ),
    "shared memory above that of the devices": (
        {"accelerator": "nvidia", "pools.trainer": {"acceleratorsPerWorker": 2, "sharedMemory": "1Ti"}},
        f"{POOLS}.trainer.sharedMemory",
        "limit of 512Gi",
    ),
}


@pytest.mark.parametrize(("changes", "field", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(changes, field, words):
    [problem] = refusals(spec(changes))
    assert str(problem).startswith(f"{field}: ")
    assert words in str(problem)
    assert "\n" not in str(problem)


def test_problems_come_together_in_the_order_of_the_fields():
    wrong = spec(
        {"image": None, "storage.mountPath": "/tmp"}
        | template("head", hostNetwork=True, restartPolicy="Always")
        | template("heavyRollout", containers=[{}])
    )
    assert [str(problem).split(":")[0] for problem in refusals(wrong)] == [
        "spec.image",
        "spec.storage.mountPath",
        f"{HEAD}.restartPolicy",
        f"{HEAD}.hostNetwork",
        f"{POOLS}.heavyRollout.template.spec.containers[0]",
    ]


ALLOWED = {
    **{name: changes for name, changes in GOOD.items() if name != "pull over shared memory"},
    "a mount beside those of the image": {"storage.mountPath": "/usr/local/runs"},
    "a mount in a home": {"storage.mountPath": "/home/ray/runs"},
    "a mount whose name begins like another": {"storage.mountPath": "/library"},
    "the same again": template("head", restartPolicy="Never", hostNetwork=False, shareProcessNamespace=True),
    "several trainer pods with a volume": {
        "pools.trainer.replicas": 2,
        "storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}},
    },
    "several trainer pods with checkpoints on a volume of the templates": {
        "pools.trainer.replicas": 2,
        "training.checkpoint.path": "/shared/checkpoints",
    },
    "as many accelerators as there are": {
        "accelerator": "nvidia",
        "pools.trainer.resources": {"limits": {"nvidia.com/gpu": "1"}},
    },
    "shared memory without a limit": {
        "pools.trainer": {"sharedMemory": "64Gi", "resources": {"requests": {"memory": "1Gi"}}}
    },
    "huge pages": {"pools.trainer.resources": {"limits": {"hugepages-2Mi": "64Mi"}}},
    "whole devices in other forms": {
        "pools.trainer.resources": {
            "limits": {"rdma/hca": "2.0", "vendor.com/port": "3000m", "vendor.com/unit": "1k"}
        }
    },
    "a part of what is native to Kubernetes": {
        "pools.trainer.resources": {"requests": {"kubernetes.io/batch-cpu": "500m"}}
    },
    "the reward function's sockets on another volume": template(
        "head",
        volumes=[{"name": "fast", "emptyDir": {"medium": "Memory"}}],
        containers=[
            {"name": name, "volumeMounts": [{"name": "fast", "mountPath": SOCKETS_PATH}]}
            for name in ("driver", "rewards")
        ],
    ),
    "a sidecar with a command": container("trainer", "log", image="b", command=["tail"], workingDir="/"),
    "scratch on a volume": template("trainer", volumes=[{"name": "tmp", "ephemeral": {}}]),
    "a mount beside ours": container(
        "trainer", "ray-worker", volumeMounts=[{"name": "data", "mountPath": "/tmp/data"}]
    ),
    "a user of the cluster's choice": template("head", securityContext={"runAsUser": None, "fsGroup": None}),
    "what cannot be an environment": container("head", "driver", env=["A", {"value": [1]}]),
    "what cannot be resources": container("head", "driver", resources=["A"]),
    "what cannot be requests": container("head", "driver", resources={"requests": "A", "limits": None}),
    "a choice of nodes that is none": template("head", nodeSelector=["A"]),
    "keys that are numbers": {"pools.head.template": {"metadata": {"labels": {1: "a"}}}},
}


QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"


@pytest.mark.parametrize(
    ("metadata", "field", "words"),
    [
        (
            {"namespace": "Team_A"},
            "metadata.namespace",
            "at most 63 of a-z, 0-9 and -, without - at its ends",
        ),
        ({"namespace": ""}, "metadata.namespace", "(found '')"),
        ({"namespace": "a" * 64}, "metadata.namespace", "at most 63"),
        ({"labels": {QUEUE: "Team A"}}, f"metadata.labels.{QUEUE}", "(found 'Team A')"),
        ({"labels": {PRIORITY: "-high"}}, f"metadata.labels.{PRIORITY}", "a name of at most 63"),
        ({"labels": {"team": "a b"}}, "metadata.labels.team", "letters, digits, -, _ and '.'"),
        ({"labels": {"team": "a" * 64}}, "metadata.labels.team", "at most 63"),
    ],
)
def test_metadata_that_the_api_server_would_refuse(metadata, field, words):
    [problem] = metadata_refusals(Metadata.model_validate({"name": "test", **metadata}))
    assert str(problem).startswith(f"{field}: ")
    assert words in str(problem)


def test_metadata_that_is_allowed():
    labels = {QUEUE: "team-a.b", PRIORITY: "high", "team": "A_b.c", "empty": "", "long": "a" * 63}
    for namespace in ("default", "0", "a" * 63):
        made = {"name": "test", "namespace": namespace, "labels": labels}
        assert metadata_refusals(Metadata.model_validate(made)) == []


@pytest.mark.parametrize("changes", ALLOWED.values(), ids=ALLOWED)
@pytest.mark.parametrize("version", ["1.4.2", "1.6.2"])
def test_what_is_not_refused_can_be_rendered(changes, version):
    good = spec(changes)
    assert refusals(good) == []
    assert objects(KEY, good, 1, KubeRay.of_version(version))


def test_the_templates_of_the_documentation_are_allowed():
    text = (Path(__file__).parents[4] / "docs" / "cluster-objects.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    shown = [
        block.get("pools", {}).get("trainer", block)["template"] for block in blocks if "kind" not in block
    ]
    assert len(shown) == 3
    for each in shown:
        assert refusals(spec({"pools.trainer.template": each})) == []
