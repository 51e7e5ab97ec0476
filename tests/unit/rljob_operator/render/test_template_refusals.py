"""What is refused in pools' templates, and in which words."""

import pytest

from rljob_operator.render import refusals
from rljob_operator.render.rewards import SOCKETS_PATH
from tests.support.operator.refused_specs import HEAD, POOLS, TRAINER, container, spec, template

REFUSED = {
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
    "not a template": (
        {"pools.head.template": {"nodeSelector": {}}},
        f"{POOLS}.head.template.nodeSelector",
        "is no field of a pod template",
    ),
    "a security context that is no mapping": (
        template("head", securityContext=1),
        f"{HEAD}.securityContext",
        "must be a mapping",
    ),
    "a spec that is no mapping": ({"pools.head.template": {"spec": None}}, HEAD, "must be a mapping"),
    "a pod's name": (
        {"pools.head.template": {"metadata": {"name": "x"}}},
        f"{POOLS}.head.template.metadata.name",
        "must not be set: of a pod's metadata, labels and annotations are yours",
    ),
    "a mount over the reward function's sockets, for the driver alone": (
        container("head", "driver", volumeMounts=[{"name": "x", "mountPath": f"{SOCKETS_PATH}/"}]),
        f"{HEAD}.containers[0].volumeMounts[0]",
        "is where the driver reaches the reward function: driver and rewards must mount one volume there",
    ),
    "a mount over the reward function's sockets, for that alone": (
        container("head", "rewards", volumeMounts=[{"name": "x", "mountPath": SOCKETS_PATH}]),
        f"{HEAD}.containers[0].volumeMounts[0]",
        "is where the driver reaches the reward function",
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
    "the label by which KubeRay's Service finds the head": (
        {"pools.head.template": {"metadata": {"labels": {"app.kubernetes.io/created-by": "argo"}}}},
        f"{POOLS}.head.template.metadata.labels.app.kubernetes.io/created-by",
        "must not be set: workers find the head by KubeRay's value of it",
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
    "a variable that is a number": (
        container("trainer", "ray-worker", env=[{"name": "A", "value": "1"}, {"name": "B", "value": 1}]),
        f"{TRAINER}.containers[0].env[1].value",
        "must be a string: put it in quotes (found 1)",
    ),
    "a variable of another container that is true": (
        container("trainer", "log", image="b", env=[{"name": "B", "value": True}]),
        f"{TRAINER}.containers[0].env[0].value",
        "must be a string: put it in quotes (found true)",
    ),
    "a variable of an init container that is a number": (
        template("head", initContainers=[{"name": "a", "image": "b", "env": [{"name": "B", "value": 0.5}]}]),
        f"{HEAD}.initContainers[0].env[0].value",
        "must be a string: put it in quotes (found 0.5)",
    ),
    "a label that is a number": (
        {"pools.head.template": {"metadata": {"labels": {"a": 1, "b": "1", "c": None}}}},
        f"{POOLS}.head.template.metadata.labels.a",
        "must be a string: put it in quotes (found 1)",
    ),
    "an annotation that is true": (
        {"pools.head.template": {"metadata": {"annotations": {"example.com/inject": True}}}},
        f"{POOLS}.head.template.metadata.annotations.example.com/inject",
        "must be a string: put it in quotes (found true)",
    ),
    "a node's label that is true": (
        template("trainer", nodeSelector={"gpu": True}),
        f"{TRAINER}.nodeSelector.gpu",
        "must be a string: put it in quotes (found true)",
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
}


@pytest.mark.parametrize(("changes", "field", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(changes, field, words):
    [problem] = refusals(spec(changes))
    assert str(problem).startswith(f"{field}: ")
    assert words in str(problem)
    assert "\n" not in str(problem)


@pytest.mark.parametrize(
    ("pool", "where"), [("trainer", "labels"), ("head", "annotations")], ids=["of a worker", "no label"]
)
def test_who_made_a_pod_may_be_said_where_nobody_looks_for_it(pool, where):
    said = {"metadata": {where: {"app.kubernetes.io/created-by": "argo"}}}
    assert refusals(spec({f"pools.{pool}.template": said})) == []
