"""Ctrl-C in the first moments of a command, in a process as a person starts it."""

import os
import sys
from pathlib import Path

_PRESSED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit('it went on')\n"


def pressed_at_import(folder: Path, module: str) -> dict[str, str]:
    """The environment of a Python process that is interrupted when it imports a module, by way of a file in
    `folder`."""
    (folder / "sitecustomize.py").write_text(
        "import importlib.abc, importlib.util, signal, sys\n"
        # What a shell starts in the background has it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Pressed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            return importlib.util.spec_from_loader(name, self)\n"
        "    def get_source(self, name):\n"
        f"        return {_PRESSED!r}\n"
        "sys.meta_path.insert(0, Pressed())\n"
    )
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
