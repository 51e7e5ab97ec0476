"""Who reaches whom under NetworkPolicies, as their specification says; for policies that select by labels
alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Peer:
    """A pod."""

    name: str
    namespace: str
    labels: Mapping[str, str]


def reaches(policies: Iterable[Policy], source: Peer, target: Peer, port: int) -> bool:
    """Whether the policies let a connection from one pod to a TCP port of another come about: the source's
    let it out, and the target's let it in."""
    policies = list(policies)
    return _let("Egress", policies, source, target, port) and _let("Ingress", policies, target, source, port)


def _let(direction: str, policies: list[Policy], pod: Peer, other: Peer, port: int) -> bool:
    """A pod that no policy of the direction selects is open; otherwise one rule of any must fit."""
    selecting = [each for each in policies if direction in _types(each["spec"]) and _selects(each, pod)]
    if not selecting:
        return True
    rules = [(each, rule) for each in selecting for rule in each["spec"].get(direction.lower(), ())]
    side = "from" if direction == "Ingress" else "to"
    return any(
        _peers(policy, rule.get(side), other) and _ports(rule.get("ports"), port) for policy, rule in rules
    )


def _types(spec: Mapping[str, Any]) -> list[str]:
    """Without `policyTypes`: ingress, and egress where there are rules for it."""
    return list(spec.get("policyTypes", ["Ingress", *(["Egress"] if "egress" in spec else [])]))


def _selects(policy: Policy, pod: Peer) -> bool:
    return policy["metadata"]["namespace"] == pod.namespace and _match(
        policy["spec"]["podSelector"], pod.labels
    )


def _peers(policy: Policy, peers: Iterable[Mapping[str, Any]] | None, other: Peer) -> bool:
    """No peers are all; a pod selector without one for namespaces is about the policy's own."""
    if not peers:
        return True
    for peer in peers:
        if peer.keys() - {"podSelector", "namespaceSelector"}:
            raise NotImplementedError(f"peers by {', '.join(peer)}")
        if "namespaceSelector" in peer:
            there = _match(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
        else:
            there = policy["metadata"]["namespace"] == other.namespace
        if there and _match(peer.get("podSelector", {}), other.labels):
            return True
    return False


def _ports(ports: Iterable[Mapping[str, Any]] | None, port: int) -> bool:
    return not ports or any(each.get("protocol", "TCP") == "TCP" and each["port"] == port for each in ports)


def _match(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if "matchExpressions" in selector:
        raise NotImplementedError("matchExpressions")
    return selector.get("matchLabels", {}).items() <= labels.items()
