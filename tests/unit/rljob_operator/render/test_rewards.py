"""What the container of the reward function has, and what it must not have."""

import pytest

from rljob_operator.render.pods import wait_script
from tests.support.operator.rendered import ASCEND, NVIDIA, cluster, containers, environment, pod

JOBS = [{}, NVIDIA, ASCEND]


def user(rendered, name):
    """User of a container: its own, or its pod's."""
    own = containers(rendered)[name]["securityContext"]
    return own.get("runAsUser", pod(rendered, "head")["securityContext"].get("runAsUser"))


@pytest.mark.parametrize("changes", JOBS)
def test_the_reward_function_is_another_user_than_all_others_of_the_pod(changes):
    users = {name: user(cluster(changes), name) for name in containers(cluster(changes))}
    assert users == {"ray-head": 1000, "driver": 1000, "rewards": 1001}


USERS = {
    "of the pod": {"securityContext": {"runAsUser": 1001, "runAsGroup": 1001}},
    "of the driver": {"containers": [{"name": "driver", "securityContext": {"runAsUser": 1001}}]},
    "of both": {
        "securityContext": {"runAsUser": 1002},
        "containers": [{"name": "driver", "securityContext": {"runAsUser": 1001}}],
    },
}


@pytest.mark.parametrize("said", USERS.values(), ids=USERS)
def test_it_is_another_user_also_where_a_template_gives_its_own_to_others(said):
    rendered = cluster({"pools.head.template": {"spec": said}})
    assert user(rendered, "rewards") not in [user(rendered, name) for name in ("driver", "ray-head")]
    own = containers(rendered)["rewards"]["securityContext"]
    assert own["runAsGroup"] == own["runAsUser"]


@pytest.mark.parametrize("changes", JOBS)
def test_the_reward_function_has_no_secret_and_writes_nothing_that_others_read_but_its_socket(changes):
    head = containers(cluster(changes))
    mounted = {
        name: {each["name"] for each in head[name]["volumeMounts"] if not each.get("readOnly")}
        for name in head
    }
    assert mounted["rewards"] & (mounted["driver"] | mounted["ray-head"]) == {"reward-sockets"}
    readable = {each["name"] for each in head["rewards"]["volumeMounts"]}
    assert readable == {"reward-tmp", "reward-sockets", "storage"}  # neither "keys" nor "driver-token"
    assert not [name for name in environment(head["rewards"]) if name.startswith("RAY_")]


def test_it_cannot_fill_the_nodes_disk():
    own = {each["name"]: each["emptyDir"] for each in pod(cluster(), "head")["volumes"] if "emptyDir" in each}
    assert own["reward-tmp"] == {"sizeLimit": "16Gi"} and own["reward-sockets"] == {"sizeLimit": "16Mi"}


GIVEN = {"spec": {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}}
"""Template of a head whose user the namespace gives."""


@pytest.mark.parametrize(
    ("changes", "own"),
    [({}, False), ({"pools.head.template": GIVEN}, True)],
    ids=["as another user", "as the same"],
)
def test_it_lives_as_long_as_the_driver(changes, own):
    head = containers(cluster(changes))
    [*_, script] = head["rewards"]["lifecycle"]["preStop"]["exec"]["command"]
    assert script == wait_script("drive", own=own)
    [*_, rays] = head["ray-head"]["lifecycle"]["preStop"]["exec"]["command"]
    assert rays == wait_script("drive", own=True)


def test_what_a_reward_needs_is_added_by_a_template():
    added = {"name": "rewards", "env": [{"name": "JUDGE", "value": "http://judge"}], "image": "judge:1"}
    found = containers(cluster({"pools.head.template": {"spec": {"containers": [added]}}}))
    assert environment(found["rewards"])["JUDGE"] == "http://judge"
    assert (found["rewards"]["image"], found["driver"]["image"]) == ("judge:1", "rljob/runtime:1")
    assert "JUDGE" not in environment(found["driver"])


def test_where_the_namespace_gives_the_users_there_is_one_for_all():
    rendered = cluster({"pools.head.template": GIVEN})
    assert [user(rendered, name) for name in containers(rendered)] == [None, None, None]
