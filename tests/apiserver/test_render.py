"""What is rendered, on a real API server and under every KubeRay: accepted, and made into the right pods."""

import re
import subprocess
import time

import pytest
import yaml

from rljob_api import RLJob
from rljob_operator.render import JobKey, KubeRay, objects, refusals
from tests.support.jobs import job
from tests.support.operator.operator_site import until
from tools.cluster import ApiError

JOBS = {
    "cpu": {"pools.fastRollout.replicas": 2},
    "nvidia": {
        "accelerator": "nvidia",
        "pools.trainer": {"replicas": 2, "acceleratorsPerWorker": 8},
        "pools.heavyRollout": {"replicas": 1, "acceleratorsPerWorker": 4},
        # Not on the job's own volume, which would be a claim that these clusters have no storage for.
        "training.checkpoint.path": "/shared/checkpoints",
    },
    "ascend": {"accelerator": "ascend", "pools.trainer.acceleratorsPerWorker": 8},
}
"""Jobs, by their accelerator."""
FLAGS = {
    "cpu": {
        "head": "--num-cpus=0 --num-gpus=0",
        "trainer": """--num-gpus=0 --resources='{"trainer":1}'""",
        "fastRollout": """--num-gpus=0 --resources='{"fast_rollout":1}'""",
    },
    "nvidia": {
        "head": "--num-cpus=0 --num-gpus=0",
        "trainer": """--num-gpus=8 --resources='{"trainer":8}'""",
        "fastRollout": """--num-gpus=1 --resources='{"fast_rollout":1}'""",
        "heavyRollout": """--num-gpus=4 --resources='{"heavy_rollout":1}'""",
    },
    "ascend": {
        "head": "--num-cpus=0 --num-gpus=0",
        "trainer": """--num-gpus=0 --resources='{"NPU":8,"trainer":8}'""",
        "fastRollout": """--num-gpus=0 --resources='{"NPU":1,"fast_rollout":1}'""",
    },
}
"""What `ray start` is told in the pods of each pool."""
RICH_TEMPLATE = {
    "metadata": {"labels": {"team": "rl"}, "annotations": {"example.com/a": "b"}},
    "spec": {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "priorityClassName": "high",
        "securityContext": {"runAsUser": None, "supplementalGroups": [7]},
        "volumes": [
            {
                "name": "tmp",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": "1Gi"}},
                        }
                    }
                },
            }
        ],
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "containers": [
            {"name": "ray-worker", "env": [{"name": "HOME", "value": "/rljob"}]},
            {"name": "log", "image": "log:1", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]},
        ],
    },
}


def capabilities(cluster):
    """By the schema that the API server serves now. KubeRay's definitions may just have changed."""
    expected = KubeRay.of_version(cluster.kuberay_version)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = KubeRay.of_schema(cluster.api.request("GET", "/openapi/v3/apis/ray.io/v1"))
        if found == expected:
            return found
        time.sleep(0.2)  # the document is made anew some time after a definition changes, without an event
    raise AssertionError(f"schema of KubeRay {cluster.kuberay_version} says {found}, not {expected}")


def create(cluster, namespace, changes, name="test"):
    """The RLJob as the API server has it, and what is rendered for it."""
    document = job({"image": "rljob/runtime:1", "/metadata.name": name, **changes})
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(document))
    made = cluster.api.request("GET", f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs/{name}")
    spec = RLJob.model_validate(made).spec
    assert refusals(spec) == []
    return objects(JobKey(namespace, name, made["metadata"]["uid"]), spec, 1, capabilities(cluster))


def apply(cluster, documents, *options):
    """Server-side apply that refuses unknown and doubled fields."""
    return cluster.kubectl(
        "apply",
        "--server-side",
        "--validate=strict",
        *options,
        "-f",
        "-",
        stdin=yaml.safe_dump_all(documents),
    )


def restrict(cluster, namespace):
    """Pods of the namespace must fulfil the restricted Pod Security Standard, from now on."""
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    spec = {"hostNetwork": True, "containers": [{"name": "a", "image": "a"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": spec}

    def refused():
        try:
            cluster.api.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        except ApiError as error:
            return "violates PodSecurity" in error.message
        return False

    # The API server hears of the label by a watch of its own.
    until(refused, f"pods of {namespace} are restricted")


def running_pods(cluster, namespace, count):
    def running(pods):
        return len(pods) == count and all(pod["status"].get("phase") == "Running" for pod in pods)

    pods = f"/api/v1/namespaces/{namespace}/pods"
    return cluster.wait(pods, running, f"{count} pods that run")


def pool(pod):
    return pod["metadata"]["labels"]["rljob.dev/pool"]


@pytest.mark.every_kuberay
@pytest.mark.parametrize("accelerator", JOBS)
def test_pods_are_made_that_fulfil_restricted_pod_security(cluster, namespace, kuberay, accelerator):
    restrict(cluster, namespace)
    rendered = create(cluster, namespace, JOBS[accelerator])
    apply(cluster, rendered)
    replicas = [group["replicas"] for group in rendered[-1]["spec"]["workerGroupSpecs"]]
    pods = running_pods(cluster, namespace, 1 + sum(replicas))
    assert sorted(map(pool, pods)) == sorted(
        ["head"]
        + [
            name
            for name, count in zip(("trainer", "fastRollout", "heavyRollout"), replicas, strict=True)
            for _ in range(count)
        ]
    )
    for pod in pods:
        names = [each["name"] for each in pod["spec"]["containers"]]
        assert names == (["ray-head", "driver", "rewards"] if pool(pod) == "head" else ["ray-worker"])
        assert pod["spec"]["restartPolicy"] == "Never"
        [start] = pod["spec"]["containers"][0]["args"]
        assert resource_flags(start) == FLAGS[accelerator][pool(pod)].split(), start


def resource_flags(start):
    """The flags of a `ray start` that say what the node offers; custom resources without spaces."""
    compact = re.sub(r"'\{[^}]*\}'", lambda found: found[0].replace(" ", ""), start)
    flags = re.findall(r"--(?:num-gpus|resources|num-cpus=0)\S*", compact)
    return [flag for flag in flags if flag != "--num-cpus=0" or "--head" in start]


@pytest.mark.parametrize("accelerator", JOBS)
def test_what_users_add_fulfils_it_too(cluster, namespace, accelerator):
    """A claim for the runs, a sidecar and an init container, as users add them."""
    restrict(cluster, namespace)
    claim = {"persistentVolumeClaim": {"claimName": "runs"}}
    added = {
        "volumes": [{"name": "models", **claim}],
        "containers": [{"name": "log", "image": "b"}],
        "initContainers": [{"name": "fetch", "image": "c"}],
    }
    templates = {f"pools.{name}.template": {"spec": added} for name in ("head", "trainer", "fastRollout")}
    rendered = create(cluster, namespace, {**JOBS[accelerator], "storage.volume": claim, **templates})
    apply(cluster, rendered[:-1])
    for group in (rendered[-1]["spec"]["headGroupSpec"], *rendered[-1]["spec"]["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
        pod["metadata"] = {**pod["metadata"], "name": "tried", "namespace": namespace}
        cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))


def test_a_pod_that_asks_for_more_is_refused(cluster, namespace):
    """That namespaces are really enforced here."""
    restrict(cluster, namespace)
    wish = {
        "containers": [{"name": "ray-worker", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}]
    }
    rendered = create(cluster, namespace, {"pools.trainer.template": {"spec": wish}})
    pod = {"apiVersion": "v1", "kind": "Pod", **rendered[-1]["spec"]["workerGroupSpecs"][0]["template"]}
    pod["metadata"] = {**pod["metadata"], "name": "tried", "namespace": namespace}
    with pytest.raises(subprocess.CalledProcessError) as refused:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
    assert 'violates PodSecurity "restricted' in refused.value.__notes__[0]


@pytest.mark.every_kuberay
@pytest.mark.parametrize("accelerator", JOBS)
def test_a_rich_template_is_accepted_as_it_is(cluster, namespace, kuberay, accelerator):
    """By dry run: every field is known to this KubeRay's schema, and nothing is pruned."""
    rendered = create(cluster, namespace, {**JOBS[accelerator], "pools.trainer.template": RICH_TEMPLATE})
    answered = yaml.safe_load_all(apply(cluster, rendered, "--dry-run=server", "-o", "yaml"))
    [stored] = [each for each in next(iter(answered))["items"] if each["kind"] == "RayCluster"]
    for asked, kept in zip(
        rendered[-1]["spec"]["workerGroupSpecs"], stored["spec"]["workerGroupSpecs"], strict=True
    ):
        assert contains(kept, asked), (asked, kept)
    template = stored["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert "runAsUser" not in template["securityContext"]


def contains(whole, part):
    """Whether a JSON value holds all of another."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and contains(whole[key], value) for key, value in part.items()
        )
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return whole == part


def test_a_misspelt_field_of_a_template_is_refused_by_name(cluster, namespace):
    template = {"spec": {"tolerration": []}}
    rendered = create(cluster, namespace, {"pools.trainer.template": template})
    with pytest.raises(subprocess.CalledProcessError) as refused:
        apply(cluster, rendered)
    assert "spec.workerGroupSpecs[0].template.spec.tolerration" in refused.value.__notes__[0]


def test_applying_again_changes_nothing(cluster, namespace):
    rendered = create(cluster, namespace, JOBS["nvidia"])[:-1]
    apply(cluster, rendered)
    before = versions(cluster, namespace, rendered)
    apply(cluster, rendered)
    assert versions(cluster, namespace, rendered) == before


def versions(cluster, namespace, documents):
    """The objects' resourceVersions, which any change moves."""
    names = [f"{each['kind']}/{each['metadata']['name']}" for each in documents]
    found = cluster.kubectl("get", *names, "-n", namespace, "-o", "yaml")
    return {each["kind"]: each["metadata"]["resourceVersion"] for each in yaml.safe_load(found)["items"]}


def test_the_drivers_account_may_do_its_work_and_nothing_else(cluster, namespace):
    apply(cluster, create(cluster, namespace, {})[:-1])
    create(cluster, namespace, {}, name="other")
    driver = cluster.kubeconfig_of(namespace, "test-driver")

    def may(verb, what, *options):
        command = [str(cluster.kubectl_path), f"--kubeconfig={driver}", "auth", "can-i", verb, what, *options]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False).stdout
        return answer.strip() == "yes"

    # The API server hears of roles and bindings by watches of its own.
    until(lambda: may("get", "rljobs.rljob.dev/test"), "the driver's rights")
    assert may("watch", "rljobs.rljob.dev/test")
    assert may("patch", "rljobs.rljob.dev/test", "--subresource=status")
    refused = [
        ("list", "rljobs.rljob.dev"),
        ("patch", "rljobs.rljob.dev/test"),
        ("delete", "rljobs.rljob.dev/test"),
        ("get", "rljobs.rljob.dev/other"),
        ("watch", "rljobs.rljob.dev"),
        ("get", "secrets"),
        ("list", "pods"),
        ("create", "pods"),
    ]
    assert [what for what in refused if may(*what)] == []
    assert not may("patch", "rljobs.rljob.dev/other", "--subresource=status")


def test_the_driver_reads_and_watches_its_job_and_writes_its_progress(cluster, namespace):
    apply(cluster, create(cluster, namespace, {})[:-1])
    driver = cluster.kubeconfig_of(namespace, "test-driver")

    as_driver = [str(cluster.kubectl_path), f"--kubeconfig={driver}"]

    def kubectl(*arguments, stdin=None):
        return subprocess.run(
            [*as_driver, *arguments], input=stdin, capture_output=True, text=True, timeout=180, check=True
        ).stdout

    may = ["auth", "can-i", "get", "rljobs.rljob.dev/test"]
    # The API server hears of roles and bindings by watches of its own.
    until(
        lambda: subprocess.run([*as_driver, *may], capture_output=True, timeout=180).returncode == 0, "rights"
    )
    assert kubectl("get", "rljob", "test", "-o", "name") == "rljob.rljob.dev/test\n"
    training = {"step": 3, "totalSteps": 4, "weightVersion": 3}
    status = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "test"},
        "status": {"training": training},
    }
    apply_own = ["apply", "--server-side", "--field-manager=rljob-runtime", "--subresource=status", "-f", "-"]
    kubectl(*apply_own, stdin=yaml.safe_dump(status))
    path = f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs"
    watched = kubectl("get", "--raw", f"{path}?watch=1&fieldSelector=metadata.name%3Dtest&timeoutSeconds=2")
    assert (
        training.items() <= yaml.safe_load(watched.splitlines()[-1])["object"]["status"]["training"].items()
    )


def test_everything_goes_with_the_job(cluster, namespace):
    rendered = create(cluster, namespace, JOBS["cpu"])
    apply(cluster, rendered)
    running_pods(cluster, namespace, 4)
    cluster.kubectl("delete", "rljob", "test", "-n", namespace)
    for path in (
        f"/api/v1/namespaces/{namespace}/pods",
        f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters",
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
        f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
        f"/api/v1/namespaces/{namespace}/secrets",
    ):
        cluster.wait(path, lambda left: not left, "nothing")
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    cluster.wait(accounts, lambda left: len(left) == 1, "the default account alone")
