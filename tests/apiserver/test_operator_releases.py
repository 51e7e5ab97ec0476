"""Two releases of the operator that look at the same jobs."""

from tests.support.operator.operator_site import JobClient, running_operator, until


def images(client: JobClient) -> set[str]:
    return {each["image"] for pod in client.pods() for each in pod["spec"]["containers"]}


def attempts(client: JobClient) -> list[str]:
    """UIDs of the job's RayClusters."""
    return [each["metadata"]["uid"] for each in client.cluster.api.items(client.clusters_path)]


def told_by(client: JobClient, reason: str) -> set[str]:
    """The processes that have posted such Events of the job."""
    client.wait_event(reason)
    found = client.cluster.api.items(f"/apis/events.k8s.io/v1/namespaces/{client.namespace}/events")
    return {each["reportingInstance"] for each in found if each["reason"] == reason}


def test_one_works_and_the_other_goes_on_with_what_runs(cluster, namespace, tmp_path):
    """They have other default images, and are in other namespaces."""
    client = JobClient(cluster, namespace)
    first, second = ("--runtime-image", "cpu=site/runtime:1"), ("--runtime-image", "cpu=site/runtime:2")
    with running_operator(cluster, tmp_path, namespace, arguments=first) as working:
        client.create({"image": None})
        client.wait_phase("Running")
        made = attempts(client)
        with running_operator(
            cluster, tmp_path, namespace, name="second", lease_namespace="kube-public", arguments=second
        ) as waiting:
            until(lambda: "is held by" in waiting.process.log.read_text(), "it waits for the lease")
            client.scale(2)
            client.wait_pods(lambda pods: len(pods) == 4, "a pod more")
            assert (working.metric("rljob_leader"), waiting.metric("rljob_leader")) == (1, 0)
            assert waiting.metric("rljob_api_calls_total", 'verb="apply"') == 0

            working.process.stop()
            until(lambda: waiting.metric("rljob_leader") == 1, "it leads")
            client.scale(3)
            client.wait_pods(lambda pods: len(pods) == 5, "another pod more")
            assert attempts(client) == made and images(client) == {"site/runtime:1"}
            assert client.get()["status"]["attempt"] == 1


def test_a_namespace_is_its_own_operators_while_it_has_one(cluster, namespace, tmp_path):
    """Beside one that watches all namespaces."""
    client = JobClient(cluster, namespace)
    first, second = ("--runtime-image", "cpu=site/runtime:1"), ("--runtime-image", "cpu=site/runtime:2")
    with running_operator(cluster, tmp_path, None, lease_namespace=namespace, arguments=first) as everywhere:
        client.create({"image": None})
        client.wait_phase("Running")
        with running_operator(
            cluster, tmp_path, namespace, name="own", lease_namespace="kube-public", arguments=second
        ) as own:
            until(lambda: own.metric("rljob_leader") == 1, "it leads")
            words = f"the jobs of namespace {namespace} are another operator's"
            until(lambda: words in everywhere.process.log.read_text(), "they are left to it")
            [before] = told_by(client, "CreatedRayCluster")
            client.scale(2)
            client.wait_pods(lambda pods: len(pods) == 4, "a pod more")
            client.end_driver(1, "lost")
            client.wait_phase("Running", attempt=2)
            assert before not in told_by(client, "ScaledUp") | told_by(client, "Restarting")
        client.scale(3)
        client.wait_pods(lambda pods: len(pods) == 5, "another pod more")
        assert images(client) == {"site/runtime:2"} and client.get()["status"]["failures"] == 1
