"""Layers that are compiled in tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.source import TensorPropertySource

from rljob_runtime.trainer.compilation import Compilations


@contextmanager
def compiled_quickly() -> Iterator[set[str]]:
    """What is compiled within it is compiled anew, and without a compiler of machine code, which takes
    seconds; something has to be. Yields the names of numbers, other than sizes of tensors, that may be any
    in what was compiled."""
    torch._dynamo.reset()
    compilations = Compilations()
    open_numbers: set[str] = set()

    def without_machine_code(graph: Any, inputs: list[Any], **_: Any) -> Any:
        for each in inputs:
            if isinstance(each, torch.SymInt):
                sources = each.node.shape_env.var_to_sources.get(each.node.expr, ())
                open_numbers.update(of.name for of in sources if not isinstance(of, TensorPropertySource))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    try:
        with patch.object(torch, "compile", partial(torch.compile, backend=without_machine_code)):
            yield open_numbers
        assert compilations() > 0, "nothing was compiled"
    finally:
        compilations.close()
