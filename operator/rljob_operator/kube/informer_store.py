"""What an informer knows: a small projection of each object, found by its owner.

Guarantees: every method returns exactly the owners for which something differs from before, so that a
reconciler is woken once for each difference and never without one. Pure, no I/O.
"""

from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

OwnerT = TypeVar("OwnerT", bound=Hashable)
ValueT = TypeVar("ValueT")

Key = tuple[str, str]
"""Namespace and name."""
_NOTHING: Mapping[Key, object] = MappingProxyType({})


class InformerStore(Generic[OwnerT, ValueT]):
    """Values by owner and key. An object has one owner at a time."""

    def __init__(self) -> None:
        self._owner: dict[Key, OwnerT] = {}
        self._by_owner: dict[OwnerT, dict[Key, ValueT]] = {}

    def __len__(self) -> int:
        return len(self._owner)

    def of(self, owner: OwnerT) -> Mapping[Key, ValueT]:
        """The values of an owner's objects, by key: a live view, to be read before the next await."""
        held = self._by_owner.get(owner)
        return MappingProxyType(held) if held is not None else _NOTHING  # type: ignore[return-value]

    def owners(self) -> Iterable[OwnerT]:
        """Those that own something."""
        return self._by_owner.keys()

    def put(self, key: Key, owner: OwnerT, value: ValueT) -> list[OwnerT]:
        """An object is there, or has changed."""
        changed = []
        before = self._owner.get(key)
        # The one before must hear of it, too: what it had is gone.
        if before is not None and before != owner:
            changed += self.drop(key)
        siblings = self._by_owner.setdefault(owner, {})
        if key not in siblings or siblings[key] != value:
            siblings[key] = value
            changed.append(owner)
        if before != owner:
            self._owner[key] = owner
        return changed

    def drop(self, key: Key) -> list[OwnerT]:
        """An object is gone."""
        owner = self._owner.pop(key, None)
        if owner is None:
            return []
        siblings = self._by_owner[owner]
        del siblings[key]
        if not siblings:
            del self._by_owner[owner]
        return [owner]

    def retain(self, keys: set[Key]) -> list[OwnerT]:
        """Only these are there: drop all others, which were deleted unseen."""
        gone = [key for key in self._owner if key not in keys]
        return list(dict.fromkeys(owner for key in gone for owner in self.drop(key)))
