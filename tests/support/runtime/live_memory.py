"""How much memory of what was computed is still there."""

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Knows the memory of every tensor that is made while it is on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found: dict[int, StorageWeakRef] = {}
        self._outside: set[int] = set()
        """Memory of what came from elsewhere, such as weights, of which views are made."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in storages((args, kwargs)):
            if storage._cdata not in self._found:
                self._outside.add(storage._cdata)
        out = function(*args, **(kwargs or {}))
        for storage in storages(out):
            if storage._cdata not in self._outside:
                self._found[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        return out

    def alive(self) -> int:
        """Bytes that are still there."""
        gc.collect()
        return self.held()

    def held(self) -> int:
        """The same, with what waits for the garbage collector."""
        total = 0
        for key, reference in list(self._found.items()):
            # Its size may have changed: FSDP frees what it has gathered by a size of 0.
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self._found[key]
            else:
                total += storage.nbytes()
        return total


def storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    """The memory of the tensors in it."""
    return (each.untyped_storage() for each in tree_leaves(tree) if isinstance(each, torch.Tensor))
