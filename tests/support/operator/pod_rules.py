"""Rules that scanners of manifests hold pods to, as a table: the `restricted` Pod Security Standard, and what
hardening guides ask for beyond it. Each rule says of a pod, by name, what breaks it.
"""

from collections.abc import Callable, Iterator
from typing import Any

Pod = dict[str, Any]
"""A pod's spec."""
Rule = Callable[[Pod], Iterator[str]]

RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected",
    "secret",
}  # fmt: skip
"""Volume types of the standard."""


def containers(pod: Pod) -> Iterator[Pod]:
    """All of a pod's containers."""
    yield from pod["containers"]
    yield from pod.get("initContainers", ())


def setting(pod: Pod, container: Pod, name: str) -> Any:
    """A security setting as it holds for a container: its own, or the pod's."""
    own = container.get("securityContext", {})
    return own[name] if name in own else pod.get("securityContext", {}).get(name)


def host_namespaces(pod: Pod) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))


def host_ports(pod: Pod) -> Iterator[str]:
    for each in containers(pod):
        yield from (each["name"] for port in each.get("ports", ()) if port.get("hostPort"))


def volume_types(pod: Pod) -> Iterator[str]:
    for volume in pod.get("volumes", ()):
        if not set(volume) - {"name"} <= RESTRICTED_VOLUMES:
            yield str(volume["name"])


def privileged(pod: Pod) -> Iterator[str]:
    yield from (each["name"] for each in containers(pod) if setting(pod, each, "privileged"))


def escalation(pod: Pod) -> Iterator[str]:
    for each in containers(pod):
        if each.get("securityContext", {}).get("allowPrivilegeEscalation") is not False:
            yield each["name"]


def root(pod: Pod) -> Iterator[str]:
    for each in containers(pod):
        # A container's own setting wins over the pod's.
        if setting(pod, each, "runAsNonRoot") is not True or setting(pod, each, "runAsUser") == 0:
            yield each["name"]


def capabilities(pod: Pod) -> Iterator[str]:
    for each in containers(pod):
        asked = each.get("securityContext", {}).get("capabilities", {})
        if "ALL" not in asked.get("drop", ()) or set(asked.get("add", ())) - {"NET_BIND_SERVICE"}:
            yield each["name"]


def seccomp(pod: Pod) -> Iterator[str]:
    for each in containers(pod):
        if (setting(pod, each, "seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield each["name"]


def proc_mount(pod: Pod) -> Iterator[str]:
    for each in containers(pod):
        if setting(pod, each, "procMount") not in (None, "Default"):
            yield each["name"]


def sysctls(pod: Pod) -> Iterator[str]:
    yield from (each["name"] for each in pod.get("securityContext", {}).get("sysctls", ()))


RESTRICTED: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        host_namespaces, host_ports, volume_types, privileged, escalation, root, capabilities, seccomp,
        proc_mount, sysctls,
    )
}  # fmt: skip
"""The `restricted` Pod Security Standard."""


def writable_root(pod: Pod) -> Iterator[str]:
    for each in containers(pod):
        if each.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield each["name"]


def no_requests(pod: Pod) -> Iterator[str]:
    for each in containers(pod):
        if not {"cpu", "memory"} <= each.get("resources", {}).get("requests", {}).keys():
            yield each["name"]


def no_memory_limit(pod: Pod) -> Iterator[str]:
    for each in containers(pod):
        if "memory" not in each.get("resources", {}).get("limits", {}):
            yield each["name"]


def unbounded_shared_memory(pod: Pod) -> Iterator[str]:
    for volume in pod.get("volumes", ()):
        empty = volume.get("emptyDir", {})
        if empty.get("medium") == "Memory" and "sizeLimit" not in empty:
            yield volume["name"]


def account_token(pod: Pod) -> Iterator[str]:
    if pod.get("automountServiceAccountToken") is not False:
        yield "the default mount"
    tokens = {
        volume["name"]
        for volume in pod.get("volumes", ())
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", ()))
    }
    for each in containers(pod):
        mounted = any(mount["name"] in tokens for mount in each.get("volumeMounts", ()))
        # The driver alone talks to the API server.
        if mounted and each["name"] != "driver":
            yield each["name"]


def secrets_in_environment(pod: Pod) -> Iterator[str]:
    for each in containers(pod):
        if any("secretKeyRef" in variable.get("valueFrom", {}) for variable in each.get("env", ())):
            yield each["name"]
        if any("secretRef" in source for source in each.get("envFrom", ())):
            yield each["name"]


def writable_secrets(pod: Pod) -> Iterator[str]:
    secret = {volume["name"] for volume in pod.get("volumes", ()) if {"secret", "projected"} & volume.keys()}
    for each in containers(pod):
        for mount in each.get("volumeMounts", ()):
            if mount["name"] in secret and not mount.get("readOnly"):
                yield f"{each['name']}: {mount['mountPath']}"


def pull_policy(pod: Pod) -> Iterator[str]:
    yield from (each["name"] for each in containers(pod) if not each.get("imagePullPolicy"))


def service_links(pod: Pod) -> Iterator[str]:
    """Addresses of all services of the namespace in the environment."""
    if pod.get("enableServiceLinks") is not False:
        yield "enableServiceLinks"


HARDENED: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        writable_root, no_requests, no_memory_limit, unbounded_shared_memory, account_token,
        secrets_in_environment, writable_secrets, pull_policy, service_links,
    )
}  # fmt: skip
"""What hardening guides ask for beyond the standard. A limit on CPUs is not among it: it would only slow."""


def broken(pod: Pod, rules: dict[str, Rule]) -> dict[str, list[str]]:
    """What breaks each rule that is broken."""
    found = {name: list(rule(pod)) for name, rule in rules.items()}
    return {name: culprits for name, culprits in found.items() if culprits}
