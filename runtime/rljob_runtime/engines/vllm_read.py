"""Whether functions of the vLLM that is installed are those that were read when what stands in their place
was written.

Guarantees: a function with one word more or less, but for comments, is another one.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Read = Mapping[str, tuple[str, ...]]
"""By a function's qualified name, the digests of the words that were read: one for each version of vLLM in
which they differ."""


def different(read: Read, functions: Iterable[Callable[..., Any]]) -> list[str]:
    """The names of those functions that were not read."""
    return [each.__qualname__ for each in functions if digest(each) not in read[each.__qualname__]]


def digest(function: Callable[..., Any]) -> str:
    """Of a function's words, without its comments."""
    lines = [line.strip() for line in inspect.getsource(function).splitlines()]
    words = "\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def differing(misfits: Sequence[str]) -> str:
    """In words that this vLLM has these otherwise than they are needed; "" for none."""
    return f"this version of vLLM differs in {', '.join(misfits)}" if misfits else ""
