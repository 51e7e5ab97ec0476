"""Where vLLM's processes put the sockets by which they talk to each other.

Guarantees: a process that hosts engines has one folder for their sockets, which goes with its last engine;
what a killed process left goes when the next engine on this machine starts. (By itself vLLM puts them into
the folder for temporary files, where nobody removes those of a killed process.)
"""

import os
import tempfile
import threading
from pathlib import Path

from rljob_runtime.site.scratch import PREFIX, Scratch, sweep


class SocketFolder:
    """See the module's guarantees. Its methods may be called from any thread; they block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines = 0
        self._scratch: Scratch | None = None

    def enter(self) -> Path:
        """An engine starts; the folder, which is the same for all engines of this process and each time:
        vLLM may remember the path."""
        temporary = Path(tempfile.gettempdir())
        with self._lock:
            if self._scratch is None:
                sweep(temporary)
                self._scratch = Scratch(temporary / f"{PREFIX}vllm-{os.getpid()}")
            self._engines += 1
            return self._scratch.path

    def leave(self) -> None:
        """An engine has ended, and all processes of it."""
        with self._lock:
            self._engines -= 1
            if self._engines == 0 and self._scratch is not None:
                self._scratch.close()
                self._scratch = None


SOCKETS = SocketFolder()
"""Of this process."""
