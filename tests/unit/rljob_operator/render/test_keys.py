"""The Secret with a job's keys, and where its values are and are not."""

import base64
import json
import re

import pytest

from rljob_operator.render import JobKey, key_secret, objects, refusals
from rljob_operator.render.command import to_yaml
from rljob_operator.render.keys import FOLDER
from tests.support.operator.rendered import (
    ASCEND,
    GROUPS,
    KEY,
    NEW,
    NVIDIA,
    OLD,
    cluster,
    containers,
    environment,
    pod,
    spec,
)

ADDED = {
    "containers": [{"name": "log", "image": "b"}],
    "initContainers": [{"name": "fetch", "image": "c"}],
}


def made(random_bytes=lambda count: bytes(range(count))):
    return key_secret(KEY, random_bytes)


def test_the_values_are_32_random_bytes_each():
    asked = []

    def random_bytes(count):
        asked.append(count)
        return bytes([len(asked)]) * count

    found = {name: base64.b64decode(value).decode() for name, value in made(random_bytes)["data"].items()}
    assert asked == [32, 32]
    assert found == {"ray-token": "01" * 32, "wire-key": "02" * 32}


def test_it_is_the_jobs_own_for_as_long_as_the_job():
    secret = made()
    assert secret["immutable"] is True
    assert secret["metadata"]["name"] == "math-grpo-keys-5f1b7a52"
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [KEY.uid]
    later = JobKey(KEY.namespace, KEY.name, "0b1b7a52-7c0f-4a4e-9a55-2f6f4f0c9d11")
    assert later.key_secret != KEY.key_secret


@pytest.mark.parametrize("name", ["a", "a" * 40])
def test_its_name_is_one_that_kubernetes_accepts(name):
    found = JobKey("n", name, KEY.uid).key_secret
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", found) and len(found) <= 253


@pytest.mark.parametrize("kuberay", [NEW, OLD])
@pytest.mark.parametrize("changes", [{}, NVIDIA, ASCEND])
def test_our_containers_alone_have_the_keys_and_as_files(changes, kuberay):
    rendered = cluster({**changes, "pools.trainer.template": {"spec": ADDED}}, kuberay)
    for name in ["head", *GROUPS]:
        [volume] = [each for each in pod(rendered, name)["volumes"] if each["name"] == "keys"]
        assert volume["secret"]["secretName"] == KEY.key_secret
        for each in [*pod(rendered, name)["containers"], *pod(rendered, name).get("initContainers", [])]:
            mounts = [mount for mount in each.get("volumeMounts", ()) if mount["name"] == "keys"]
            ours = each["name"] in ("ray-head", "ray-worker", "driver")
            assert mounts == ([{"name": "keys", "mountPath": FOLDER, "readOnly": True}] if ours else [])
            assert "secretKeyRef" not in json.dumps(each)


def test_ray_asks_for_the_token_in_every_pod():
    rendered = cluster()
    for name in ["head", *GROUPS]:
        for called, each in containers(rendered, name).items():
            if called == "rewards":
                continue  # it is nobody that Ray or the driver would let in
            found = {key: value for key, value in environment(each).items() if key.startswith("RAY_AUTH")}
            assert found == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{FOLDER}/ray-token"}


@pytest.mark.parametrize("changes", [{}, NVIDIA, ASCEND])
def test_what_is_rendered_holds_no_value(changes):
    """Also not what `rljob render` prints, whose Secret lets no pod start: it lacks what pods mount."""
    text = to_yaml(objects(KEY, spec(changes), 1, NEW))
    [secret] = [each for each in objects(KEY, spec(changes), 1, NEW) if each["kind"] == "Secret"]
    assert {**secret, "data": made()["data"]} == made() and "data" not in secret
    assert not re.search(r"\b[0-9a-f]{40,}\b", text)
    assert {
        each["key"] for each in pod(cluster(changes), "trainer")["volumes"][-1]["secret"]["items"]
    } == set(made()["data"])


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"env": [{"name": "RAY_AUTH_MODE", "value": "disabled"}]}, "a token of its own"),
        ({"env": [{"name": "RAY_AUTH_TOKEN", "value": "a"}]}, "a token of its own"),
        ({"env": [{"name": "RAY_AUTH_TOKEN_PATH", "value": "/a"}]}, "a token of its own"),
        ({"env": [{"name": "RLJOB_KEY_FILE", "value": "/a"}]}, "RLJOB_ is the operator's"),
        ({"volumeMounts": [{"name": "x", "mountPath": FOLDER}]}, "where the job's keys are mounted"),
    ],
)
def test_a_template_cannot_take_them_away(container, words):
    template = {"spec": {"containers": [{"name": "ray-worker", **container}]}}
    [problem] = refusals(spec({"pools.fastRollout.template": template}))
    assert words in str(problem)


def test_a_template_cannot_replace_their_volume():
    template = {"spec": {"volumes": [{"name": "keys", "emptyDir": {}}]}}
    [problem] = refusals(spec({"pools.fastRollout.template": template}))
    assert "keys must not be set: the job's keys are there" in str(problem)
