"""What is refused before anything is made, and in which words."""

import re
from pathlib import Path

import pytest
import yaml

from rljob_api import Metadata, RLJob
from rljob_operator.render import JobKey, KubeRay, objects, refusals
from rljob_operator.render.refusals import metadata_refusals
from tests.support.jobs import GOOD, job

KEY = JobKey("default", "test", "an-uid")
POOLS = "spec.pools"


def spec(changes):
    return RLJob.model_validate(job({"image": "rljob/runtime:cpu", **changes})).spec


def template(pool, **pod):
    return {f"pools.{pool}.template": {"spec": pod}}


def container(pool, name, **fields):
    return template(pool, containers=[{"name": name, **fields}])


HEAD = f"{POOLS}.head.template.spec"
TRAINER = f"{POOLS}.trainer.template.spec"

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
    "an image with white space in a template": (
        container("trainer", "log", image="b\n"),
        f"{TRAINER}.containers[0].image",
        "has no white space (found 'b\\n')",
    ),
    "an image with white space for an init container": (
        template("trainer", initContainers=[{"name": "prepare", "image": " b"}]),
        f"{TRAINER}.initContainers[0].image",
        "has no white space (found ' b')",
    ),
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
    "not a template": (
        {"pools.head.template": {"nodeSelector": {}}},
        f"{POOLS}.head.template.nodeSelector",
        "is no field of a pod template",
    ),
    "a spec that is no mapping": ({"pools.head.template": {"spec": None}}, HEAD, "must be a mapping"),
    "a pod's name": (
        {"pools.head.template": {"metadata": {"name": "x"}}},
        f"{POOLS}.head.template.metadata.name",
        "must not be set: of a pod's metadata, labels and annotations are yours",
    ),
    "labels taken away": (
        {"pools.head.template": {"metadata": {"labels": None}}},
        f"{POOLS}.head.template.metadata.labels",
        "must be a mapping",
    ),
    "a label of ours": (
        {"pools.head.template": {"metadata": {"labels": {"rljob.dev/pool": "x"}}}},
        f"{POOLS}.head.template.metadata.labels.rljob.dev/pool",
        "must not be set: rljob.dev/ is the operator's",
    ),
    "an annotation of KubeRay": (
        {"pools.head.template": {"metadata": {"annotations": {"ray.io/overwrite-container-cmd": "true"}}}},
        f"{POOLS}.head.template.metadata.annotations.ray.io/overwrite-container-cmd",
        "must not be set: ray.io/ is KubeRay's",
    ),
    "another restart policy": (
        template("trainer", restartPolicy="Always"),
        f"{TRAINER}.restartPolicy",
        "it is Never",
    ),
    "Kubernetes' own restart policy": (
        template("head", restartPolicy=None),
        f"{HEAD}.restartPolicy",
        "it is Never",
    ),
    "the host's network": (
        template("trainer", hostNetwork=True),
        f"{TRAINER}.hostNetwork",
        "fight for Ray's ports",
    ),
    "the host's processes": (
        template("trainer", hostPID=True),
        f"{TRAINER}.hostPID",
        "processes of other pods",
    ),
    "the old name of serviceAccountName": (
        template("head", serviceAccount="a"),
        f"{HEAD}.serviceAccount",
        "its name is serviceAccountName",
    ),
    "processes apart": (
        template("head", shareProcessNamespace=False),
        f"{HEAD}.shareProcessNamespace",
        "finds Ray by its processes",
    ),
    "containers taken away": (
        template("trainer", containers=None),
        f"{TRAINER}.containers",
        "must be a list",
    ),
    "a container without a name": (
        template("trainer", containers=[{"image": "x"}]),
        f"{TRAINER}.containers[0]",
        "must have a name",
    ),
    "two of a name": (
        template("trainer", volumes=[{"name": "a"}, {"name": "a"}]),
        f"{TRAINER}.volumes[1]",
        "a is there twice",
    ),
    "the volume of the runs": (
        template("trainer", volumes=[{"name": "storage", "nfs": {}}]),
        f"{TRAINER}.volumes[0]",
        "storage must not be set: say it in spec.storage.volume",
    ),
    "an init container that is Ray's": (
        template("trainer", initContainers=[{"name": "ray-worker"}]),
        f"{TRAINER}.initContainers[0].name",
        "ray-worker is a container's name",
    ),
    "a command": (
        container("trainer", "ray-worker", command=["ray"]),
        f"{TRAINER}.containers[0].command",
        "must not be set in ray-worker",
    ),
    "a command for the driver": (
        container("head", "driver", args=["x"]),
        f"{HEAD}.containers[0].args",
        "must not be set in driver",
    ),
    "another working folder": (
        container("head", "driver", workingDir="/"),
        f"{HEAD}.containers[0].workingDir",
        "it is storage.mountPath",
    ),
    "resources in two places": (
        container("trainer", "ray-worker", resources={"limits": {"cpu": 1}}),
        f"{TRAINER}.containers[0].resources",
        "say it in pools.trainer.resources",
    ),
    "a handler in the way of the checkpoint": (
        container("head", "ray-head", lifecycle={"preStop": {"sleep": {"seconds": 1}}}),
        f"{HEAD}.containers[0].lifecycle",
        "must not change preStop of ray-head",
    ),
    "the handler taken away": (
        container("head", "ray-head", lifecycle=None),
        f"{HEAD}.containers[0].lifecycle",
        "must not change preStop of ray-head",
    ),
    "a variable of ours": (
        container("head", "driver", env=[{"name": "RLJOB_ATTEMPT", "value": "7"}]),
        f"{HEAD}.containers[0].env[0]",
        "RLJOB_ATTEMPT must not be set: RLJOB_ is the operator's",
    ),
    "a variable that KubeRay refuses in silence": (
        container("head", "ray-head", env=[{"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"}]),
        f"{HEAD}.containers[0].env[0]",
        "RAY_REDIS_ADDRESS must not be set: Ray's fault tolerance by Redis is not used",
    ),
    "environment taken away": (
        container("head", "driver", env=None),
        f"{HEAD}.containers[0].env",
        "must be a list",
    ),
    "a scratch folder of one container": (
        container("head", "ray-head", volumeMounts=[{"name": "logs", "mountPath": "/tmp/ray"}]),
        f"{HEAD}.containers[0].volumeMounts[0]",
        "give template.spec.volumes an item named tmp",
    ),
    "a mount over the runs": (
        container("trainer", "ray-worker", volumeMounts=[{"name": "x", "mountPath": "/rljob/"}]),
        f"{TRAINER}.containers[0].volumeMounts[0]",
        "/rljob is where spec.storage.volume is mounted",
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
    "a sidecar with a command": container("trainer", "log", image="b", command=["tail"], workingDir="/"),
    "scratch on a volume": template("trainer", volumes=[{"name": "tmp", "ephemeral": {}}]),
    "a mount beside ours": container(
        "trainer", "ray-worker", volumeMounts=[{"name": "data", "mountPath": "/tmp/data"}]
    ),
    "a user of the cluster's choice": template("head", securityContext={"runAsUser": None, "fsGroup": None}),
    "what cannot be an environment": container("head", "driver", env=["A", {"value": 1}]),
    "what cannot be resources": container("head", "driver", resources=["A"]),
    "what cannot be requests": container("head", "driver", resources={"requests": "A", "limits": None}),
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
    assert len(shown) == 2
    for template in shown:
        assert refusals(spec({"pools.trainer.template": template})) == []
