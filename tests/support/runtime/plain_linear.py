"""vLLM on CPUs with linear layers that multiply by the weights as they were loaded, as on an accelerator.

By itself it packs them there, into a form that nothing can be copied into. A plug-in of vLLM's, which all of
its processes load, has it take its own fallback.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PLUGIN = """
def load():
    from vllm import _custom_ops
    _custom_ops._supports_onednn = False
"""
_ENTRY = "[vllm.general_plugins]\nrljob_plain_linear = rljob_plain_linear:load\n"


@contextmanager
def plain_linear(folder: Path) -> Iterator[None]:
    """Engines that are started in the body have such layers; `folder` is a new one for the plug-in."""
    metadata = folder / "rljob_plain_linear-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rljob-plain-linear\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(_ENTRY)
    (folder / "rljob_plain_linear.py").write_text(_PLUGIN)
    # Processes that are spawned get this process's path.
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
