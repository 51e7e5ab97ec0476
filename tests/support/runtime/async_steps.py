"""vLLM on CPUs that schedules a step while another is under way, as it does on an accelerator.

By itself it does not there. Steps are computed when they are given to the model, and their tokens become
known when the next step has been scheduled: what its scheduler and engine core do is as on an accelerator.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

_PLUGIN = """
import contextlib, os, torch

class Nothing:
    def __init__(self, *arguments, **named):
        self.device = torch.device("cpu")
    def record(self, *arguments): pass
    def synchronize(self): pass
    def wait_stream(self, stream): pass

def load():
    # In the engine core: its host may use an accelerator.
    if os.environ.get("RLJOB_ENGINE_HOST") != str(os.getpid()):
        torch.cuda.Event = torch.cuda.Stream = Nothing
        torch.cuda.current_stream = Nothing
        torch.cuda.stream = contextlib.nullcontext
"""
_ENTRY = "[vllm.general_plugins]\nrljob_async_steps = rljob_async_steps:load\n"


@contextmanager
def async_steps(folder: Path) -> Iterator[None]:
    """Engines that are started in the body have two steps under way; `folder` is a new one for a plug-in."""
    from vllm.platforms.cpu import CpuPlatform

    metadata = folder / "rljob_async_steps-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rljob-async-steps\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(_ENTRY)
    (folder / "rljob_async_steps.py").write_text(_PLUGIN)
    original = CpuPlatform.check_and_update_config

    def check_and_update_config(config: Any) -> None:
        original(config)
        config.scheduler_config.async_scheduling = True

    # Processes that are spawned get this process's path.
    sys.path.insert(0, str(folder))
    try:
        with patch.object(CpuPlatform, "check_and_update_config", staticmethod(check_and_update_config)):
            yield
    finally:
        sys.path.remove(str(folder))
