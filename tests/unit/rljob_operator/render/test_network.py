"""Who reaches a job's pods, where the network plug-in enforces NetworkPolicies."""

import re
from pathlib import Path

import pytest
import yaml

from rljob_operator.render import JobKey, access_objects
from rljob_operator.render.labels import pod_labels
from tests.support.operator.network_rules import Peer, reaches
from tests.support.operator.rendered import KEY, spec

ROLES = ("head", "trainer", "fastRollout", "heavyRollout")
GCS, METRICS, WORKERS = 6379, 8080, 10002
OTHER_JOB = JobKey(KEY.namespace, "other", "00000000-0000-4000-8000-000000000001")
SAME_NAME = JobKey("elsewhere", KEY.name, "00000000-0000-4000-8000-000000000002")
STRANGER = Peer("stranger", KEY.namespace, {"app": "notebook"})
PROMETHEUS = Peer("prometheus", "monitoring", {"app": "prometheus"})


def peers(key, attempt=1):
    return [Peer(role, key.namespace, pod_labels(key, attempt, role)) for role in ROLES]


def policies(*keys):
    return [each for key in keys for each in access_objects(key, spec()) if each["kind"] == "NetworkPolicy"]


ALL = policies(KEY, OTHER_JOB, SAME_NAME)


@pytest.mark.parametrize("port", [GCS, METRICS, WORKERS])
@pytest.mark.parametrize("target", peers(KEY), ids=lambda peer: peer.name)
def test_only_pods_of_the_job_reach_it(target, port):
    assert all(reaches(ALL, source, target, port) for source in peers(KEY))
    outside = [*peers(OTHER_JOB), *peers(SAME_NAME), STRANGER, PROMETHEUS]
    assert [source for source in outside if reaches(ALL, source, target, port)] == []


def test_without_the_policy_everybody_would():
    assert reaches([], STRANGER, peers(KEY)[0], GCS)
    assert reaches(policies(OTHER_JOB), STRANGER, peers(KEY)[0], GCS)


def test_a_jobs_pods_reach_what_they_fetch_from():
    """Models, data, object stores, the API server and names: where they are is not known."""
    for source in peers(KEY):
        assert reaches(ALL, source, STRANGER, 443)
        assert reaches(ALL, source, Peer("dns", "kube-system", {"k8s-app": "kube-dns"}), 53)


def documented():
    """The policy that docs/security.md shows."""
    text = (Path(__file__).parents[4] / "docs" / "security.md").read_text()
    [policy] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    return policy


def test_policies_add_up():
    both = [*ALL, documented()]
    for target in peers(KEY):
        assert reaches(both, PROMETHEUS, target, METRICS)
        assert not reaches(both, PROMETHEUS, target, GCS)
        assert not reaches(both, STRANGER, target, METRICS)
        assert reaches(both, peers(KEY)[1], target, GCS)
