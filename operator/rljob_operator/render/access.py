"""What the driver may do at the API server, and who may talk to the job's pods.

Guarantees: the driver reads its own RLJob and writes that one's status, and nothing else; workers may do
nothing; pods of other jobs and users reach none of the job's ports.
"""

from typing import Any

from rljob_api import GROUP
from rljob_operator.render.labels import JOB, object_labels, owner_references
from rljob_operator.render.names import JobKey

_RBAC = "rbac.authorization.k8s.io"
TOKEN_VOLUME = "driver-token"
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SECONDS = 3600
"""The kubelet replaces the token when 80 % of it have passed."""


def service_account(key: JobKey) -> dict[str, Any]:
    """The driver's account. Its token is mounted where it is asked for alone."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(key, key.driver_account),
        "automountServiceAccountToken": False,
    }


def role(key: JobKey) -> dict[str, Any]:
    """What the driver may do."""
    # By name: other RLJobs of the namespace are not its business.
    own = {"apiGroups": [GROUP], "resourceNames": [key.name]}
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": _metadata(key, key.driver_account),
        "rules": [
            {**own, "resources": ["rljobs"], "verbs": ["get", "watch"]},
            {**own, "resources": ["rljobs/status"], "verbs": ["patch"]},
        ],
    }


def role_binding(key: JobKey, account: str) -> dict[str, Any]:
    """The role, for the ServiceAccount of the head pod."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(key, key.driver_account),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": key.driver_account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": key.namespace}],
    }


def network_policy(key: JobKey) -> dict[str, Any]:
    """Only the job's own pods reach its pods: whoever reaches Ray's ports can run code there. Probes of the
    kubelet come from the pod's node, which is always let in."""
    own = {"matchLabels": {JOB: key.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(key, key.network_policy),
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": own}]}],
        },
    }


def token_volume() -> dict[str, Any]:
    """A token of the pod's account, for the one container that mounts it: Ray's need none."""
    return {
        "name": TOKEN_VOLUME,
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}},
                # Kubernetes puts this ConfigMap into every namespace.
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {
                    "downwardAPI": {
                        "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
                    }
                },
            ]
        },
    }


def token_mount() -> dict[str, Any]:
    """Where clients look for the token."""
    return {"name": TOKEN_VOLUME, "mountPath": _TOKEN_PATH, "readOnly": True}


def _metadata(key: JobKey, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": key.namespace,
        "labels": object_labels(key),
        "ownerReferences": owner_references(key),
    }
