"""What a namespace may have in the way of an RLJob's objects."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.operator import rendered
from tests.support.operator.operator_site import JobClient, until
from tools.cluster import ApiError


def quota_none(client: JobClient, resource: str, most: str) -> str:
    """A ResourceQuota `none` that lets the namespace have `most` of pods, or no RayClusters, from now on; its
    path."""
    quotas = f"/api/v1/namespaces/{client.namespace}/resourcequotas"
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {resource: most}}}
    client.cluster.api.request("POST", quotas, {"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    if resource == "pods":
        # Before a controller has counted them, they are refused in other words. (It may count a new kind of
        # objects minutes later: those words are a refusal as well.)
        client.cluster.wait(
            quotas,
            lambda found: any(resource in each.get("status", {}).get("used", {}) for each in found),
            f"{resource} counted",
        )
    else:
        # The API server learns of it by a watch of its own, and remembers for a while that there was none.
        until(lambda: _refused(client, "quota: none"), f"{resource} refused")
    return f"{quotas}/none"


@contextmanager
def dead_webhook(client: JobClient, plural: str) -> Iterator[None]:
    """While this runs, a webhook that nobody answers must agree to objects of KubeRay in the namespace.
    `plural`: `rayclusters`, or `*`."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    webhook = {
        "name": "dead.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [
            {"apiGroups": ["ray.io"], "apiVersions": ["v1"], "operations": ["*"], "resources": [plural]}
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": client.namespace}},
        "failurePolicy": "Fail",
        "timeoutSeconds": 1,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    body = {**kind, "metadata": {"name": client.namespace}, "webhooks": [webhook]}
    client.cluster.api.request("POST", path, body)
    try:
        # The API server asks a webhook from a moment on that it tells nobody.
        until(lambda: _refused(client, webhook["name"]), f"{webhook['name']} is asked")
        yield
    finally:
        client.cluster.api.request("DELETE", f"{path}/{client.namespace}")


def _refused(client: JobClient, why: str) -> bool:
    """Whether a RayCluster of the namespace is refused, with a message that says `why`; none is made."""
    made = rendered.cluster()
    tried = {**made, "metadata": {"name": "tried", "namespace": client.namespace}}
    try:
        client.cluster.api.request("POST", f"{client.clusters_path}?dryRun=All", tried)
    except ApiError as error:
        if why not in error.message:
            raise
        return True
    return False
