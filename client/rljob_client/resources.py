"""The API server's resource types that the operator touches, and their paths. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True)
class Resource:
    """A type of object that the API server serves."""

    group: str
    """Empty for the core group."""
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`group/version`, as in manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """The URL's path, percent-encoded: of the collection, of one namespace's, or of an object."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            if not self.namespaced:
                raise ValueError(f"{self.kind} is cluster-scoped: it is in no namespace")
            parts += ["namespaces", namespace]
        elif name is not None and self.namespaced:
            raise ValueError(f"{self.kind} {name!r}: a namespace is needed")
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(quote(part, safe="") for part in parts)


RLJOBS = Resource("rljob.dev", "v1alpha1", "RLJob", "rljobs")
RAY_CLUSTERS = Resource("ray.io", "v1", "RayCluster", "rayclusters")
PODS = Resource("", "v1", "Pod", "pods")
CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps")
SECRETS = Resource("", "v1", "Secret", "secrets")
SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
EVENTS = Resource("events.k8s.io", "v1", "Event", "events")
# The same objects as `EVENTS`, under the group and field names that KubeRay and Kubernetes' controllers use.
CORE_EVENTS = Resource("", "v1", "Event", "events")
LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases")

_KNOWN = {
    (resource.api_version, resource.kind): resource
    for resource in (
        RLJOBS,
        RAY_CLUSTERS,
        PODS,
        CONFIG_MAPS,
        SECRETS,
        SERVICE_ACCOUNTS,
        ROLES,
        ROLE_BINDINGS,
        NETWORK_POLICIES,
        EVENTS,
        LEASES,
    )
}


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """The type of a manifest, by its apiVersion and kind."""
    key = (str(manifest.get("apiVersion")), str(manifest.get("kind")))
    if key not in _KNOWN:
        known = ", ".join(f"{kind} ({version})" for version, kind in sorted(_KNOWN))
        raise ValueError(f"{key[1]} ({key[0]}) is none of the types that the operator writes: {known}")
    return _KNOWN[key]
