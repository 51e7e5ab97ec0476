"""Imports of large packages in less time.

Python collects garbage while it imports: it looks, ever again, through all that is imported by then, and
finds next to none. That is a fifth of the time that torch and transformers take, and as much again at the
process's end.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def large_imports() -> Iterator[None]:
    """No garbage is collected in the body, and what there is at its end is passed over by later collections,
    if modules were imported: they stay as long as the process does. For imports alone, in any thread."""
    if not gc.isenabled():
        # Another thread imports, or nobody wants collections: that is not ours to end.
        yield
        return
    before = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()
        gc.enable()
