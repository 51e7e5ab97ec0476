"""Merging one pod template over another.

Guarantees: neither input changes; keys that the upper one leaves out stay as they are; the order of the lower
one's lists is kept (KubeRay takes the first container for Ray's); merging the same template again changes
nothing.

The rules, by the key under which a value stands:

| value | rule |
|---|---|
| null | the key is removed |
| a map | merged, key by key |
| `containers`, `initContainers` | an item of the same `name` is merged; others are appended |
| `env`, `volumes`, `volumeMounts` … | an item of the same name or path replaces; others are appended |
| `tolerations`, `topologySpreadConstraints`, `envFrom` … | appended, unless the same is there |
| a probe, or a handler of `lifecycle` | replaced: two kinds of handler in one are invalid |
| any other list, any other value | replaced |
"""

from collections.abc import Callable, Hashable
from typing import Any

Template = dict[str, Any]
"""A part of a PodTemplateSpec, as in JSON."""

# Items are matched by the keys by which Kubernetes itself matches them.
_MERGED_BY = {"containers": "name", "initContainers": "name"}
_REPLACED_BY: dict[str, tuple[str, ...]] = {
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "resourceClaims": ("name",),
    "claims": ("name", "request"),
    "schedulingGates": ("name",),
}
_APPENDED = {"tolerations", "topologySpreadConstraints", "envFrom", "readinessGates"}
_WHOLE = {"livenessProbe", "readinessProbe", "startupProbe", "preStop", "postStart"}
_DEFAULTS = {"protocol": "TCP"}
"""What Kubernetes takes for a field by which items are matched, where an item leaves it out."""


def merge(lower: Template, upper: Template) -> Template:
    """`upper` merged over `lower`."""
    merged = dict(lower)
    for key, value in upper.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_value(key, merged.get(key), value)
    return merged


def _merge_value(key: str, lower: Any, upper: Any) -> Any:
    # Also over nothing: a null asks for removal, and must not reach the API server.
    if isinstance(upper, dict):
        return merge(lower if isinstance(lower, dict) and key not in _WHOLE else {}, upper)
    if not isinstance(upper, list):
        return upper
    below = lower if isinstance(lower, list) else []
    if key in _MERGED_BY:
        return _by_identity(below, upper, (_MERGED_BY[key],), merge)
    if key in _REPLACED_BY:
        return _by_identity(below, upper, _REPLACED_BY[key], lambda _, item: merge({}, item))
    if key in _APPENDED:
        return [*below, *(item for item in upper if item not in below)]
    return upper


def _by_identity(
    lower: list[Any],
    upper: list[Any],
    fields: tuple[str, ...],
    join: Callable[[Template, Template], Template],
) -> list[Any]:
    """The lower items, each joined with the upper one of the same identity, then the other upper items."""
    items = list(lower)
    places = {_identity(item, fields): place for place, item in enumerate(items)}
    for item in upper:
        identity = _identity(item, fields)
        place = None if identity is None else places.get(identity)
        if place is None:
            places[identity] = len(items)
            items.append(merge({}, item) if isinstance(item, dict) else item)
        else:
            items[place] = join(items[place], item)
    return items


def _identity(item: Any, fields: tuple[str, ...]) -> Hashable:
    """The values of the fields that items are matched by; None for an item without them, which matches no
    other."""
    if not isinstance(item, dict) or fields[0] not in item:
        return None
    # What cannot be compared is left for the API server to refuse.
    values = tuple(item.get(field, _DEFAULTS.get(field)) for field in fields)
    return values if all(isinstance(value, Hashable) for value in values) else None
