"""RLJobs that `kubectl apply` refuses, and the words that a person reads then."""

import copy
import functools
import re
import secrets
import subprocess

import pytest
import yaml

from rljob_api.job import Spec
from tests.support.broken_jobs.rules import BROKEN_RULES
from tests.support.jobs import REMOVED, job
from tests.support.valid_jobs import GOOD

RULES = {name: (changes, words) for name, (changes, _, words) in BROKEN_RULES.items()}
"""In the runtime's words: with the values that broke the rule."""

SCHEMA = {
    "a name too long for the names that follow from it": (
        {"/metadata.name": "x" * 41},
        "metadata.name must have at most 40 characters",
    ),
    "a name that begins with a digit": (
        {"/metadata.name": "7b"},
        "metadata.name must have at most 40 characters: a-z first",
    ),
    "no training": ({"training": REMOVED}, "spec.training: Required value"),
    "no model": ({"training.model": REMOVED}, "spec.training.model: Required value"),
    "no data at all": ({"training.data": REMOVED}, "spec.training.data: Required value"),
    "an unknown accelerator": (
        {"accelerator": "tpu"},
        'spec.accelerator: Unsupported value: "tpu": supported values: "nvidia", "ascend", "cpu"',
    ),
    "an amount of more digits than anything has": (
        {"pools.head.resources": {"limits": {"memory": "9" * 5000}}},
        "spec.pools.head.resources.limits.memory: Too long: may not be more than 32",
    ),
    "an unknown controller": (
        {"managedBy": "me"},
        'spec.managedBy: Unsupported value: "me": supported values: "rljob.dev/operator"',
    ),
    "no trainer worker": (
        {"pools.trainer.replicas": 0},
        "spec.pools.trainer.replicas: Invalid value: 0: spec.pools.trainer.replicas in body should be "
        "greater than or equal to 1",
    ),
    "fewer than no workers": (
        {"pools.heavyRollout.replicas": -1},
        "spec.pools.heavyRollout.replicas in body should be greater than or equal to 0",
    ),
    "too many workers": (
        {"pools.fastRollout.replicas": 4097},
        "spec.pools.fastRollout.replicas in body should be less than or equal to 4096",
    ),
    "more accelerators than a worker has": (
        {"accelerator": "nvidia", "pools.trainer.acceleratorsPerWorker": 17},
        "spec.pools.trainer.acceleratorsPerWorker in body should be less than or equal to 16",
    ),
    "half a worker": (
        {"pools.fastRollout.replicas": 1.5},
        'spec.pools.fastRollout.replicas: Invalid value: "number": spec.pools.fastRollout.replicas in body '
        'must be of type integer: "number"',
    ),
    "a number as text": (
        {"pools.fastRollout.replicas": "2"},
        'spec.pools.fastRollout.replicas in body must be of type integer: "string"',
    ),
    "a negative number of tries": (
        {"runPolicy.backoffLimit": -1},
        "spec.runPolicy.backoffLimit in body should be greater than or equal to 0",
    ),
    "no time at all": (
        {"runPolicy.activeDeadlineSeconds": 0},
        "spec.runPolicy.activeDeadlineSeconds in body should be greater than or equal to 1",
    ),
    "a relative mount path": (
        {"storage.mountPath": "rljob"},
        "must be an absolute path without colons, such as /rljob (found 'rljob')",
    ),
    "no version of Ray": (
        {"rayVersion": "latest"},
        "must be a whole version, such as 2.60.0 (found 'latest')",
    ),
    "no function": (
        {"training.reward.function": "my rewards"},
        "must be module:function, such as my_rewards:score (found 'my rewards')",
    ),
    "an empty image": ({"image": ""}, "spec.image in body should be at least 1 chars long"),
    "a resource without its domain": (
        {"accelerator": "nvidia", "resourceName": "gpu"},
        "must be a resource with its vendor, such as nvidia.com/gpu (found 'gpu')",
    ),
    "a pull policy of its own": (
        {"imagePullPolicy": "Sometimes"},
        'spec.imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always"',
    ),
}
"""Jobs that the schema alone refuses."""

SUSPENDED = "can change only while the job is suspended (spec.suspend: true)"
NVIDIA = {"accelerator": "nvidia"}

FREE_FORM = {
    "the volume": lambda value: {"storage.volume": value},
    "a reward's arguments": lambda value: {
        "training.reward": {"function": "judge:score", "arguments": value},
    },
    "arguments of one of several rewards": lambda value: {
        "training.reward": {
            "functions": [
                {"name": "one", "function": "judge:score", "arguments": value},
                {"name": "two", "function": "judge:score"},
            ]
        },
    },
    "an own loss's arguments": lambda value: {
        "training.algorithm.policyLoss": {"custom": {"function": "own:loss", "arguments": value}},
    },
    "an own advantage's arguments": lambda value: {
        "training.algorithm.advantage": {"custom": {"function": "own:advantage", "arguments": value}},
    },
    "vLLM's configuration": lambda value: {
        "training.rollout.engine": {"vllm": {"additionalConfig": value}},
    },
}
"""What a job is, by the value of a field that takes any mapping."""
NFS = {"nfs": {"server": "files", "path": "/runs"}}
FREE_FORM_CHANGES = {
    # what: (the value before, the value after, whether the API server sees it)
    "another value": (NFS, {"nfs": "another"}, True),
    "another value below": (NFS, {"nfs": {"server": "files", "path": "/other"}}, True),
    "another key below": (NFS, {"nfs": {"server": "files", "folder": "/runs"}}, True),
    "a key more": (NFS, {**NFS, "more": {"a": 1}}, True),
    "a key less": ({**NFS, "more": {"a": 1}}, NFS, True),
    "a key in another's place": (NFS, {"claim": {"name": "runs"}}, False),
}


def free_form(seen):
    """The changes of such fields that the API server sees, or does not: before, after, the field that its
    words name."""
    return {
        f"{field}: {change}": (of(before), of(after), next(iter(of(after))).partition(".")[0])
        for field, of in FREE_FORM.items()
        for change, (before, after, sees) in FREE_FORM_CHANGES.items()
        if sees == seen
    }


TRANSITIONS = {
    **{name: (*case[:2], f"{case[2]} {SUSPENDED}") for name, case in free_form(seen=True).items()},
    "the training": ({}, {"training.schedule.totalSteps": 5}, f"training {SUSPENDED}"),
    "an engine": ({}, {"training.rollout.engine": {"torch": {}}}, f"training {SUSPENDED}"),
    "another engine": (
        {"training.rollout.engine": {"vllm": {"kvCacheGiB": 2.0}}},
        {"training.rollout.engine": {"torch": {}}},
        f"training {SUSPENDED}",
    ),
    "how weights travel": ({}, {"training.async": {"weightSync": {"pull": {}}}}, f"training {SUSPENDED}"),
    "the objective": (
        {},
        {"training.algorithm": {"policyLoss": {"truncatedReinforce": {}}}},
        f"training {SUSPENDED}",
    ),
    "the reward": ({}, {"training.reward.arguments": {"a": 1}}, f"training {SUSPENDED}"),
    "the accelerator": ({}, {"accelerator": "nvidia"}, f"accelerator {SUSPENDED}"),
    "the image": ({"image": "a:1"}, {"image": "a:2"}, f"image {SUSPENDED}"),
    "no image any more": ({"image": "a:1"}, {}, f"image {SUSPENDED}"),
    "the pull policy": ({}, {"imagePullPolicy": "Always"}, f"imagePullPolicy {SUSPENDED}"),
    "Ray's version": ({}, {"rayVersion": "2.61.0"}, f"rayVersion {SUSPENDED}"),
    "the storage": ({}, {"storage.mountPath": "/mnt"}, f"storage {SUSPENDED}"),
    "the resource": (NVIDIA, {**NVIDIA, "resourceName": "a.b/gpu"}, f"resourceName {SUSPENDED}"),
    "the head": (
        {},
        {"pools.head.resources": {"requests": {"cpu": "1"}}},
        f"pools.head.resources {SUSPENDED}",
    ),
    "shared memory of the head": (
        {},
        {"pools.head.sharedMemory": "1Gi"},
        f"pools.head.sharedMemory {SUSPENDED}",
    ),
    "accelerators of a worker": (
        NVIDIA,
        {**NVIDIA, "pools.trainer.acceleratorsPerWorker": 2},
        f"pools.trainer.acceleratorsPerWorker {SUSPENDED}",
    ),
    "engines of an accelerator": (
        NVIDIA,
        {**NVIDIA, "pools.fastRollout.enginesPerAccelerator": 2},
        f"pools.fastRollout.enginesPerAccelerator {SUSPENDED}",
    ),
    "CPUs of a worker": (
        {},
        {"pools.fastRollout.cpusPerWorker": 2},
        f"pools.fastRollout.cpusPerWorker {SUSPENDED}",
    ),
    "memory of a worker": (
        {},
        {"pools.heavyRollout.resources": {"requests": {"memory": "1Gi"}}},
        f"pools.heavyRollout.resources {SUSPENDED}",
    ),
    "shared memory of a worker": (
        {},
        {"pools.fastRollout.sharedMemory": "1Gi"},
        f"pools.fastRollout.sharedMemory {SUSPENDED}",
    ),
    "a bound of a pool": (
        {"pools.fastRollout.maxReplicas": 4},
        {"pools.fastRollout.maxReplicas": 5},
        f"pools.fastRollout.maxReplicas {SUSPENDED}",
    ),
    "a pool beyond its bound": (
        {"pools.fastRollout.maxReplicas": 4},
        {"pools.fastRollout": {"maxReplicas": 4, "replicas": 5}},
        "replicas must be between minReplicas and maxReplicas",
    ),
}
"""What a running job is (`before`) and cannot become (`after`)."""

TEMPLATE = {"spec": {"nodeSelector": {"disk": "fast"}}}
FREE = {
    # As the docs say: what the operator does about it, `plan/outdated.py`.
    **{name: case[:2] for name, case in free_form(seen=False).items()},
    "more fast workers": ({}, {"pools.fastRollout.replicas": 3}),
    "heavy workers": ({}, {"pools.heavyRollout.replicas": 2}),
    "more trainers": ({}, {"pools.trainer.replicas": 2}),
    "suspend": ({}, {"suspend": True}),
    "the head's template": ({}, {"pools.head.template": TEMPLATE}),
    "one template of all pools": (
        {},
        {f"pools.{pool}.template": TEMPLATE for pool in ("head", "trainer", "fastRollout", "heavyRollout")},
    ),
    "another template": (
        {"pools.head.template": {"spec": {"tolerations": []}}},
        {"pools.head.template": TEMPLATE},
    ),
    "no template any more": ({"pools.trainer.template": TEMPLATE}, {}),
    "deadlines": ({}, {"runPolicy": {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 5}}),
}
"""What a running job can become."""


def applied(cluster, namespace, documents):
    """What kubectl says of each of these, by its place: one program for all, since it is slow to start."""
    arguments = ["apply", "--server-side=false", "-n", namespace, "-f", "-"]
    try:
        said = cluster.kubectl(*arguments, stdin=yaml.safe_dump_all(documents), seconds=300)
    except subprocess.CalledProcessError as error:
        said = error.stdout + "".join(error.__notes__)
    parts = re.split(r'^(?=The RLJob ")|^(?=Error from server)|^(?=rljob\.)', said, flags=re.MULTILINE)
    names = [document["metadata"]["name"] for document in documents]
    found = {name: [part for part in parts if re.search(rf'["/]{name}[" ]', part)] for name in names}
    return [" ".join("".join(found[name]).split()) for name in names]


def named(table, prefix, place):
    """A table's jobs with names of their own."""
    return [
        job({"/metadata.name": f"{prefix}-{number}", **case[place]})
        for number, case in enumerate(table.values())
    ]


class Said:
    """What kubectl said of a table's cases."""

    def __init__(self, names, said):
        self.of = dict(zip(names, said, strict=True))


@pytest.fixture(scope="module")
def place(cluster):
    # A name of its own: one that was deleted is there for some time.
    name = f"refused-{secrets.token_hex(3)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    cluster.api.request("POST", "/api/v1/namespaces", body)
    yield name
    cluster.api.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module")
def created(cluster, place):
    table = {**RULES, **SCHEMA}
    return Said(table, applied(cluster, place, named(table, "new", 0)))


@pytest.mark.parametrize(("name", "words"), [(name, case[1]) for name, case in {**RULES, **SCHEMA}.items()])
def test_it_is_refused(created, name, words):
    assert "is invalid" in created.of[name]
    assert words in created.of[name]


@pytest.fixture(scope="module")
def good(cluster, place):
    table = {name: (changes,) for name, changes in GOOD.items()}
    return Said(table, applied(cluster, place, named(table, "good", 0)))


@pytest.mark.parametrize("name", GOOD)
def test_what_the_runtime_takes_is_taken(good, name):
    assert good.of[name].endswith(" created")


def changed(cluster, place, table, prefix, **also):
    """What kubectl says of the second state, after the first was taken."""
    first = [{**each, "spec": {**each["spec"], **also}} for each in named(table, prefix, 0)]
    assert all(said.endswith(" created") for said in applied(cluster, place, first))
    second = [{**each, "spec": {**each["spec"], **also}} for each in named(table, prefix, 1)]
    return Said(table, applied(cluster, place, second))


@pytest.fixture(scope="module")
def while_running(cluster, place):
    return changed(cluster, place, TRANSITIONS, "runs")


@pytest.mark.parametrize("name", TRANSITIONS)
def test_it_stays_while_the_job_runs(while_running, name):
    assert "is invalid" in while_running.of[name]
    assert TRANSITIONS[name][2] in while_running.of[name]


@pytest.fixture(scope="module")
def while_suspended(cluster, place):
    return changed(cluster, place, TRANSITIONS, "rests", suspend=True)


@pytest.mark.parametrize("name", [name for name in TRANSITIONS if "beyond" not in name])
def test_it_is_free_while_the_job_is_suspended(while_suspended, name):
    assert while_suspended.of[name].endswith(" configured")


@pytest.fixture(scope="module")
def free(cluster, place):
    return changed(cluster, place, FREE, "free")


@pytest.mark.parametrize("name", FREE)
def test_it_is_free_while_the_job_runs(free, name):
    assert free.of[name].endswith(" configured")


def test_the_controller_never_changes(cluster, place):
    before = job({"/metadata.name": "managed", "suspend": True})
    after = job({"/metadata.name": "managed", "suspend": True, "managedBy": "kueue.x-k8s.io/multikueue"})
    applied(cluster, place, [before])
    assert "managedBy cannot change" in applied(cluster, place, [after])[0]


def test_a_choice_goes_from_one_manager_to_another(cluster, place):
    path = f"/apis/rljob.dev/v1alpha1/namespaces/{place}/rljobs/chosen"

    def apply(manager, engine, *options):
        """The version and the engine that are stored then."""
        arguments = ["apply", "--server-side", f"--field-manager={manager}", *options, "-n", place, "-f", "-"]
        document = job({"/metadata.name": "chosen", "suspend": True, "training.rollout.engine": engine})
        cluster.kubectl(*arguments, stdin=yaml.safe_dump(document))
        stored = cluster.api.request("GET", path)
        return stored["metadata"]["resourceVersion"], list(stored["spec"]["training"]["rollout"]["engine"])

    first = apply("one", {"vllm": {"kvCacheGiB": 2.0}})
    assert apply("one", {"vllm": {"kvCacheGiB": 2.0}}) == first
    with pytest.raises(subprocess.CalledProcessError) as refused:
        apply("two", {"torch": {}})
    assert "- .spec.training.rollout.engine\n" in refused.value.__notes__[0]
    assert apply("two", {"torch": {}}, "--force-conflicts")[1] == ["torch"]


CHOICES = [
    {},
    {
        "training.rollout.engine": {"torch": {}},
        "training.rollout.routing": {"interleaved": {}},
        "training.async.weightSync": {"pull": {}},
        "training.algorithm.policyLoss": {"gspo": {}},
        "training.algorithm.advantage": {"rloo": {}},
    },
    {
        "training.rollout.engine": {"vllm": {}},
        "training.rollout.routing": {"adjacent": {}},
        "training.async.weightSync": {"push": {}},
        "training.algorithm.policyLoss": {"cispo": {}},
        "training.algorithm.advantage": {"grpo": {}},
    },
    {},
]
"""What one manifest after another chooses for the same job."""


def test_one_choice_takes_the_place_of_another(cluster, place):
    """With `kubectl apply` as it is without options, which merges what is stored with what is applied."""
    path = f"/apis/rljob.dev/v1alpha1/namespaces/{place}/rljobs/choosing"
    for chosen in CHOICES:
        (said,) = applied(
            cluster, place, [job({"/metadata.name": "choosing", "suspend": True, **copy.deepcopy(chosen)})]
        )
        assert said.endswith(("created", "configured")), said
        training = cluster.api.request("GET", path)["spec"]["training"]
        for field in CHOICES[1]:
            members = {member for each in CHOICES for member in each.get(field, {})}
            _, *names, last = field.split(".")
            stored = functools.reduce(dict.__getitem__, names, training).get(last) or {}
            assert members & stored.keys() == chosen.get(field, {}).keys(), field


def test_a_misspelt_field_is_named(cluster, place):
    with pytest.raises(subprocess.CalledProcessError) as refused:
        cluster.kubectl(
            "apply", "-n", place, "-f", "-", stdin=yaml.safe_dump(job({"pools.fastRollout.replica": 2}))
        )
    assert 'unknown field "spec.pools.fastRollout.replica"' in refused.value.__notes__[0]


def test_scaling_beyond_a_bound_is_refused(cluster, place):
    applied(cluster, place, [job({"/metadata.name": "bounded", "pools.fastRollout.maxReplicas": 2})])
    with pytest.raises(subprocess.CalledProcessError) as refused:
        cluster.kubectl("scale", "rljob", "bounded", "-n", place, "--replicas=3")
    assert "replicas must be between minReplicas and maxReplicas" in refused.value.__notes__[0]


def test_every_fixed_field_has_a_case():
    told = [words for _, _, words in TRANSITIONS.values()]
    missing = {each.field for each in Spec.transitions if not any(each.message in text for text in told)}
    # The pools have rules of the same form; one pool stands for all.
    alike = {field for field in missing if field.startswith("pools.")}
    kinds = {field.rpartition(".")[2] for field in alike}
    assert kinds <= {text.split(" ")[0].rpartition(".")[2] for text in told} | {"minReplicas"}
    assert missing - alike == {"managedBy", "acceleratorType"}
