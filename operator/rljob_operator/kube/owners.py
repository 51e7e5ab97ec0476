"""Who owns an object, as its owner references tell. Pure.

Whoever may create pods may give them any labels, such as by a Deployment's template. What an owner reference
names is at least the object's fate: Kubernetes deletes it with its owner, or where there is none.
"""

from rljob_client.objects import Item, OwnerReference


def controller_uid(item: Item) -> str | None:
    """UID of the controlling owner; None where there is none."""
    owner = _controller(item)
    return owner.uid if owner is not None else None


def ray_cluster_uid(item: Item, name: str) -> str | None:
    """UID of the RayCluster of this name that controls a pod, as one does that KubeRay made; None where none
    does."""
    owner = _controller(item)
    if owner is None or owner.kind != "RayCluster" or not owner.api_version.startswith("ray.io/"):
        return None
    return owner.uid if owner.name == name else None


def _controller(item: Item) -> OwnerReference | None:
    return next((owner for owner in item.metadata.owner_references if owner.controller), None)
