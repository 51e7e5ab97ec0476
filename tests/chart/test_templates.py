"""What the chart makes of its values."""

import json
import re

import pytest
import yaml

from rljob_operator.controller.main import _parser
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.render.images import ACCELERATORS
from tests.chart.helm import CHART, NAMESPACE, ROOT, HelmFailed, helm, of_kind, render, the
from tests.support.operator.pod_rules import HARDENED, RESTRICTED, broken

ALL = {
    "metrics.serviceMonitor.enabled": True,
    "metrics.dashboard.enabled": True,
    "watchNamespace": "team",
    "runtimeImages": {"cpu": "r:cpu", "nvidia": "r:cuda", "ascend": "r:ascend"},
}


POLICY = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


@pytest.fixture(scope="module")
def default():
    return render()


def deployment(objects):
    return the(objects, "Deployment")["spec"]


def pod(objects):
    return deployment(objects)["template"]["spec"]


def arguments(objects):
    return pod(objects)["containers"][0]["args"]


class TestChart:
    @pytest.mark.parametrize("values", [{}, ALL], ids=["default", "all"])
    def test_lint(self, values):
        options = [f"--set-json={path}={json.dumps(value)}" for path, value in values.items()]
        assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", str(CHART), *options)

    def test_its_version_is_the_projects(self):
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert chart["version"] == chart["appVersion"] == version[1]

    @pytest.mark.parametrize(
        ("release", "name"),
        [
            ("rljob", "rljob-operator"),
            ("rljob-operator", "rljob-operator"),
            ("ml", "ml-rljob-operator"),
            ("my-rljob-operator", "my-rljob-operator"),
            ("r" * 53, f"{'r' * 37}-rljob-operator"),
        ],
    )
    def test_names(self, release, name):
        made = the(render(release=release), "Deployment")["metadata"]["name"]
        assert made == name and len(f"{made}-metrics") <= 63

    def test_names_may_look_like_numbers(self):
        named = {"watchNamespace": "42", "serviceAccount.name": "99", "operator.burst": 2_000_000}
        objects = render(named, release="7", namespace="123")
        for each in objects:
            about = [each["metadata"].get("namespace", ""), each["metadata"]["name"]]
            about += each["metadata"]["labels"].values()
            assert all(isinstance(text, str) for text in about), each["metadata"]
        deployment = the(objects, "Deployment")
        assert deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == "7"
        assert pod(objects)["serviceAccountName"] == "99"
        assert {"--namespace=42", "--lease-namespace=123", "--burst=2000000"} <= set(
            pod(objects)["containers"][0]["args"]
        )
        subjects = [s for each in of_kind(objects, "RoleBinding") for s in each["subjects"]]
        assert {(s["name"], s["namespace"]) for s in subjects} == {("99", "123")}

    @pytest.mark.parametrize(
        ("values", "release", "namespace", "beside"),
        [
            ({}, "team-a", NAMESPACE, True),
            ({"watchNamespace": "team-a"}, "team-a", NAMESPACE, True),
            ({"watchNamespace": "team-a", "rbac.userRoles": False}, "rljob", "other", True),
            ({"watchNamespace": "team-a"}, "rljob", "other", False),
            ({"rbac.userRoles": False}, "rljob", "other", False),
        ],
    )
    def test_a_further_release_has_objects_of_its_own(self, default, values, release, namespace, beside):
        """docs/operations.md, "Several operators in one cluster": else Helm refuses it."""
        further = render({**values, "crds.install": False}, release=release, namespace=namespace)
        first, second = (
            {
                (each["kind"], about.get("namespace"), about["name"])
                for each in made
                for about in [each["metadata"]]
            }
            for made in (default, further)
        )
        assert first.isdisjoint(second) == beside

    def test_every_object_is_labelled_and_in_the_releases_namespace(self):
        cluster_scoped = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", *POLICY}
        for each in render(ALL):
            labels = each["metadata"]["labels"]
            assert labels["app.kubernetes.io/instance"] == "rljob", each["kind"]
            if each["kind"] not in cluster_scoped:
                wanted = {NAMESPACE} | ({"team"} if each["kind"] in ("Role", "RoleBinding") else set())
                assert each["metadata"]["namespace"] in wanted, each["kind"]


class TestDefinition:
    def test_it_is_the_generated_one(self, default):
        made = the(default, "CustomResourceDefinition")
        generated = yaml.safe_load((ROOT / "crds" / "rljobs.rljob.dev.yaml").read_text())
        assert made["spec"] == generated["spec"], "run `make crds`"
        copy = CHART / "files" / "rljobs.rljob.dev.yaml"
        assert copy.read_bytes() == (ROOT / "crds" / copy.name).read_bytes(), "run `make crds`"

    @pytest.mark.parametrize(
        ("values", "annotations"),
        [
            ({}, [{"helm.sh/resource-policy": "keep"}]),
            ({"crds.keep": False}, [{}]),
            ({"crds.install": False}, []),
        ],
    )
    def test_kept(self, values, annotations):
        made = of_kind(render(values), "CustomResourceDefinition")
        assert [each["metadata"].get("annotations", {}) for each in made] == annotations

    def test_helm_does_not_take_it_for_one_that_it_never_upgrades(self):
        assert not (CHART / "crds").exists()


class TestDeployment:
    @pytest.mark.parametrize("rules", [RESTRICTED, HARDENED], ids=["restricted", "hardened"])
    @pytest.mark.parametrize("values", [{}, ALL], ids=["default", "all"])
    def test_security(self, rules, values):
        # The operator is the one that needs a token.
        allowed = {"account_token": ["operator"]} if rules is HARDENED else {}
        assert broken(pod(render(values)), rules) == allowed

    def test_the_user_can_be_left_to_openshift(self):
        made = render({"podSecurityContext.runAsUser": None, "podSecurityContext.runAsGroup": None})
        assert pod(made)["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }

    def test_two_replicas_that_survive_a_drain(self, default):
        assert deployment(default)["replicas"] == 2
        budget = the(default, "PodDisruptionBudget")["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"] == deployment(default)["selector"]
        [spread] = pod(default)["topologySpreadConstraints"]
        assert spread["topologyKey"] == "kubernetes.io/hostname"
        assert spread["labelSelector"] == deployment(default)["selector"]

    def test_one_replica_has_no_budget_that_blocks_drains(self):
        assert of_kind(render({"replicaCount": 1}), "PodDisruptionBudget") == []

    @pytest.mark.parametrize("values", [{}, ALL], ids=["default", "all"])
    def test_the_operator_takes_its_arguments(self, values):
        parsed = _parser().parse_args(arguments(render(values)))
        assert parsed.lease_namespace == NAMESPACE
        assert parsed.cluster_lease_namespace == "kube-system"
        assert parsed.namespace == values.get("watchNamespace")
        assert parsed.runtime_images == values.get("runtimeImages", {})

    def test_the_settings_reach_it(self):
        values = {"workers": 3, "writesPerSecond": 7, "burst": 9, "logLevel": "debug"}
        parsed = _parser().parse_args(arguments(render({"operator": values})))
        assert (parsed.workers, parsed.writes_per_second, parsed.burst, parsed.log_level) == (
            3,
            7,
            9,
            "debug",
        )

    def test_every_accelerator_can_have_an_image(self):
        assert set(yaml.safe_load((CHART / "values.yaml").read_text())["runtimeImages"]) == set(ACCELERATORS)

    @pytest.mark.parametrize(
        ("values", "image"),
        [
            ({}, "rljob/operator:0.1.0"),
            ({"image.repository": "registry/x", "image.tag": "7"}, "registry/x:7"),
            ({"image.tag": "7", "image.digest": f"sha256:{'a' * 64}"}, f"rljob/operator@sha256:{'a' * 64}"),
        ],
    )
    def test_image(self, values, image):
        assert pod(render(values))["containers"][0]["image"] == image

    def test_probes_ask_what_is_served(self, default):
        container = pod(default)["containers"][0]
        [port] = container["ports"]
        assert _parser().parse_args(container["args"]).port == port["containerPort"]
        asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert {each["port"] for each in asked.values()} == {port["name"]}
        assert [each["path"] for each in asked.values()] == ["/healthz", "/healthz", "/readyz"]

    def test_pods_are_placed_as_asked(self):
        asked = {
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "system-cluster-critical",
            "imagePullSecrets": [{"name": "registry"}],
        }
        made = pod(render(asked))
        assert {name: made[name] for name in asked} == asked

    def test_labels_of_pods_leave_alone_what_is_selected_by(self):
        asked = {"team": "ml", "app.kubernetes.io/name": "other", "app.kubernetes.io/instance": "other"}
        [made] = [each for each in render({"podLabels": asked}) if each["kind"] == "Deployment"]
        labels = made["spec"]["template"]["metadata"]["labels"]
        assert made["spec"]["selector"]["matchLabels"].items() <= labels.items() and labels["team"] == "ml"


def test_a_kubernetes_that_lacks_what_the_definition_needs_is_refused():
    with pytest.raises(HelmFailed, match=r"requires kubeVersion: >=1.30.0-0"):
        helm("template", "rljob", str(CHART), "--kube-version=1.29.9")


class TestNetwork:
    def test_who_reads_metrics(self):
        peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        policy = the(render({"networkPolicy.metricsFrom": [peer]}), "NetworkPolicy")["spec"]
        assert policy["ingress"] == [{"from": [peer], "ports": [{"port": "metrics"}]}]

    def test_nobody_reads_metrics(self):
        assert the(render({"networkPolicy.metricsFrom": []}), "NetworkPolicy")["spec"]["ingress"] == []

    def test_only_the_api_server_and_names_can_be_reached(self):
        policy = the(render({"networkPolicy.apiServerPorts": [8443]}), "NetworkPolicy")["spec"]
        assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
        assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {8443, 53}

    @pytest.mark.parametrize("kind", ["Service", "NetworkPolicy"])
    def test_it_selects_the_operators_pods(self, default, kind):
        spec = the(default, kind)["spec"]
        selector = spec["selector"] if kind == "Service" else spec["podSelector"]["matchLabels"]
        assert selector.items() <= deployment(default)["template"]["metadata"]["labels"].items()

    def test_the_monitor_finds_the_service(self):
        made = render(ALL)
        monitor, service = the(made, "ServiceMonitor")["spec"], the(made, "Service")
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert [each["port"] for each in monitor["endpoints"]] == [
            each["name"] for each in service["spec"]["ports"]
        ]

    def test_no_monitoring_by_default(self, default):
        assert of_kind(default, "ServiceMonitor") == of_kind(default, "ConfigMap") == []


class TestRights:
    def test_one_namespace_needs_no_cluster_role(self):
        made = render({"watchNamespace": "team", "rbac.userRoles": False})
        assert of_kind(made, "ClusterRole") == of_kind(made, "ClusterRoleBinding") == []
        assert the(made, "Role", "rljob-operator")["metadata"]["namespace"] == "team"

    def test_no_wildcards_and_no_secrets_to_read(self, default):
        for each in of_kind(default, "ClusterRole") + of_kind(default, "Role"):
            for rule in each["rules"]:
                assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
                if "secrets" in rule["resources"]:
                    assert rule["verbs"] == ["create"]

    def test_bindings_name_what_is_there(self, default):
        account = the(default, "ServiceAccount")["metadata"]["name"]
        bindings = of_kind(default, "ClusterRoleBinding") + of_kind(default, "RoleBinding")
        assert pod(default)["serviceAccountName"] == account
        for each in bindings:
            the(default, each["roleRef"]["kind"], each["roleRef"]["name"])
            assert [subject["name"] for subject in each["subjects"]] == [account]

    def test_an_account_of_somebody_elses(self):
        made = render({"serviceAccount": {"create": False, "name": "given"}})
        assert of_kind(made, "ServiceAccount") == []
        assert pod(made)["serviceAccountName"] == "given"


class TestJobStatusPolicy:
    def test_it_is_in_force_for_status_writes_of_every_namespace(self, default):
        policy, binding = (the(default, kind) for kind in POLICY)
        assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
        [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
        assert (rule["apiGroups"], rule["resources"]) == (["rljob.dev"], ["rljobs/status"])
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert all(each["messageExpression"] for each in policy["spec"]["validations"])

    @pytest.mark.parametrize(
        ("values", "exempt"),
        [
            ({}, ["rljob-system:rljob-operator"]),
            ({"serviceAccount.name": "own"}, ["rljob-system:own"]),
            (
                {"jobStatusPolicy.exempt": ["system:serviceaccount:team:backup"]},
                ["rljob-system:rljob-operator", "team:backup"],
            ),
        ],
    )
    def test_the_operator_and_whoever_is_named_are_exempt(self, values, exempt):
        conditions = the(render(values), POLICY[0])["spec"]["matchConditions"]
        names = re.findall(r'"system:serviceaccount:([^"]+)"', conditions[1]["expression"])
        assert names == exempt

    def test_an_operator_of_one_namespace_binds_it_there(self):
        spec = the(render({"watchNamespace": "team"}), POLICY[1])["spec"]
        labels = spec["matchResources"]["namespaceSelector"]["matchLabels"]
        assert labels == {"kubernetes.io/metadata.name": "team"}

    def test_it_can_be_left_out(self):
        made = render({"jobStatusPolicy.enabled": False})
        assert [each["kind"] for each in made if each["kind"] in POLICY] == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": 2}, "replicas"),
        ({"replicaCount": 0}, "replicaCount"),
        ({"runtimeImages.gpu": "x"}, "gpu"),
        ({"runtimeImages.cpu": "two words"}, "cpu"),
        ({"operator.logLevel": "chatty"}, "logLevel"),
        ({"image.pullPolicy": "Sometimes"}, "pullPolicy"),
        ({"image.digest": "sha256:short"}, "digest"),
        ({"watchNamespace": "Not_A_Name"}, "watchNamespace"),
        ({"clusterLeaseNamespace": ""}, "clusterLeaseNamespace"),
        ({"networkPolicy.apiServerPorts": [0]}, "apiServerPorts"),
        ({"jobStatusPolicy.exempt": ["somebody"]}, "exempt"),
        ({"serviceAccount": {"create": False, "name": ""}}, "serviceAccount.name is needed"),
    ],
)
def test_values_that_are_refused(values, said):
    with pytest.raises(HelmFailed, match=re.escape(said)):
        render(values)


class TestDashboard:
    def test_it_asks_for_metrics_that_there_are(self):
        draft = json.loads(the(render(ALL), "ConfigMap")["data"]["rljob-operator.json"])
        asked = {
            name
            for panel in draft["panels"]
            for target in panel["targets"]
            for name in re.findall(r"\brljob_\w+", target["expr"])
        }
        families = list(OperatorMetrics().registry.collect())
        there = {each.name for each in families}
        shown = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in asked}
        assert shown <= there
        forgotten = there - shown
        assert forgotten == {
            "rljob_api_call_duration_seconds",
            "rljob_informer_lists",
            "rljob_informer_changes",
        }

    def test_labels_that_it_groups_by_are_there(self):
        draft = json.loads((CHART / "files" / "dashboard.json").read_text())
        labels = {
            family.name: set(collector._labelnames)
            for collector in OperatorMetrics().registry._collector_to_names
            for family in collector.describe()
        }
        for panel in draft["panels"]:
            for target in panel["targets"]:
                [metric] = re.findall(r"\brljob_\w+", target["expr"])
                known = labels[re.sub(r"_(total|bucket|sum|count)$", "", metric)] | {"le", "pod"}
                grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
                asked = {label.strip() for group in grouped for label in group.split(",")}
                assert asked <= known, target["expr"]
