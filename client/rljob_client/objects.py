"""The parts of Kubernetes objects that this package reads, as typed structs.

JSON is decoded straight into them: fields that a struct does not name are skipped without being built, which
is what keeps a page of 500 pods small.
"""

from typing import Generic, TypeVar

import msgspec

ItemT = TypeVar("ItemT")


class OwnerReference(msgspec.Struct, rename="camel", gc=False):
    """Who owns an object."""

    kind: str
    name: str
    uid: str
    api_version: str = ""
    controller: bool = False


class ObjectMeta(msgspec.Struct, rename="camel", gc=False):
    """What every object carries."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    owner_references: list[OwnerReference] = []


class Item(msgspec.Struct, gc=False):
    """An object of which the metadata alone is wanted. Derive from it to read more."""

    metadata: ObjectMeta


class ListMeta(msgspec.Struct, rename="camel", gc=False):
    """What every list carries."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, Generic[ItemT], gc=False):
    """One page of a list."""

    metadata: ListMeta
    items: list[ItemT]


class Cause(msgspec.Struct, gc=False):
    """One of several reasons why a request was refused."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, rename="camel", gc=False):
    """Particulars of a refusal."""

    name: str = ""
    causes: list[Cause] = []
    retry_after_seconds: int = 0


class Status(msgspec.Struct, gc=False):
    """The API server's answer to a request that it did not carry out."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class WatchEvent(msgspec.Struct, gc=False):
    """One line of a watch. The object is left undecoded: its type depends on `type`."""

    type: str
    object: msgspec.Raw
