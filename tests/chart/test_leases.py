"""The Leases of the chart's releases: which one each has, and who may write to it."""

import pytest

from rljob_operator.controller.leadership import CLUSTER_LEASE, NAMESPACE_LEASE
from tests.chart.helm import CHART, NAMESPACE, of_kind, render, the


def made_in(objects):
    return the(objects, "Deployment")["metadata"]["namespace"]


def environment(objects):
    [container] = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


def of_replicas(made):
    """The rules of the Role of the Lease that a release's replicas share."""
    name = the(made, "Deployment")["metadata"]["name"]
    return the(made, "Role", f"{name}-lease")["rules"]


def own(made):
    """The rule of that Lease."""
    rule = of_replicas(made)[0]
    assert rule["resources"] == ["leases"] and "delete" in rule["verbs"]
    return rule


def shared(made, namespace):
    """The Role of the Lease that releases share."""
    [found] = [
        role
        for role in of_kind(made, "Role")
        if role["metadata"]["namespace"] == namespace and role["rules"][0]["resources"] == ["leases"]
    ]
    return found


@pytest.mark.parametrize(
    ("values", "namespace", "lease"),
    [
        ({}, "kube-system", CLUSTER_LEASE),
        ({"clusterLeaseNamespace": "shared"}, "shared", CLUSTER_LEASE),
        ({"watchNamespace": "team"}, "team", NAMESPACE_LEASE),
    ],
)
def test_releases_that_watch_the_same_jobs_share_a_lease(values, namespace, lease):
    found = [render(values, namespace=each) for each in ("one", "two")]
    roles = [shared(made, namespace) for made in found]
    names = {role["metadata"]["name"] for role in roles}
    assert len(names) == 2
    for made, role in zip(found, roles, strict=True):
        assert role["rules"][0]["resourceNames"] == [lease]
        # To change its owner, by an admission plug-in that some clusters have.
        assert "delete" in role["rules"][0]["verbs"]
        [owner] = [rule for rule in role["rules"] if rule["resources"] == ["roles"]]
        assert owner["resourceNames"] == [role["metadata"]["name"]]
        assert environment(made)["RLJOB_SHARED_LEASE_ROLE"] == role["metadata"]["name"]
        binding = the(made, "RoleBinding", role["metadata"]["name"])
        assert binding["metadata"]["namespace"] == namespace
        assert binding["subjects"][0]["namespace"] == made_in(made)


@pytest.mark.parametrize(
    ("release", "lease"),
    [
        ("rljob", "rljob-operator"),
        ("rljob-operator", "rljob-operator"),
        ("team-a", "team-a-rljob-operator"),
        ("team-b", "team-b-rljob-operator"),
    ],
)
@pytest.mark.parametrize("values", [{}, {"watchNamespace": "team"}], ids=["all", "one"])
def test_a_release_has_a_lease_of_its_own(release, lease, values):
    made = render(values, release=release)
    assert environment(made)["RLJOB_LEASE_NAME"] == lease
    assert own(made)["resourceNames"] == [lease]
    without = render({**values, "rbac.create": False}, release=release)
    assert environment(without) == {"RLJOB_LEASE_NAME": lease}


@pytest.mark.parametrize("release", [CLUSTER_LEASE, NAMESPACE_LEASE])
def test_it_is_never_the_one_that_releases_share(release):
    made = render({"clusterLeaseNamespace": NAMESPACE}, release=release)
    lease = environment(made)["RLJOB_LEASE_NAME"]
    assert lease not in (CLUSTER_LEASE, NAMESPACE_LEASE) and len(lease) <= 63
    assert own(made)["resourceNames"] == [lease]


@pytest.mark.parametrize(("release", "more"), [("rljob", 0), ("team-a", 1)])
def test_an_operator_of_the_last_release_keeps_its_lease(release, more, last_release):
    """Its replicas work until they are replaced, and so does its image in this chart."""
    before, now = (
        [rule for rule in of_replicas(render(chart=chart, release=release)) if "resourceNames" in rule]
        for chart in (last_release.chart, CHART)
    )
    [held] = [rule for rule in before if rule["resources"] == ["leases"]]
    kept = [rule for rule in now if rule["resourceNames"] == held["resourceNames"]]
    assert len(kept) == 1 and set(held["verbs"]) <= set(kept[0]["verbs"])
    assert len([rule for rule in now if rule["resources"] == ["leases"]]) == 1 + more


def test_only_who_watches_everything_looks_for_others_leases():
    default = render()
    [rule] = [
        r for r in the(default, "ClusterRole", "rljob-operator")["rules"] if r["resources"] == ["leases"]
    ]
    assert (rule["resourceNames"], rule["verbs"]) == ([NAMESPACE_LEASE], ["get", "list", "watch"])
    alone = the(render({"watchNamespace": "team"}), "Role", "rljob-operator")["rules"]
    assert not [rule for rule in alone if rule["resources"] == ["leases"]]
