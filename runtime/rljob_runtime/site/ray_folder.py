"""Where Ray keeps its files and sockets on one machine, and whether it can."""

import os
from collections.abc import Mapping

_SOCKET_BYTES = 107
"""Of the longest path of a socket on Linux."""
_BELOW = "/ray/session_2026-01-01_00-00-00_000000_{pid}/sockets/plasma_store"
"""The longest path of a socket of Ray's, below its folder; `pid`: the process that starts Ray."""


class RayFolderUnfit(RuntimeError):
    """Ray cannot keep its files where it is told to; the message is for people."""


def ray_folder(environment: Mapping[str, str]) -> tuple[str, str]:
    """The folder below which Ray keeps them, and the variable that says so. As Ray decides it."""
    for variable in ("RAY_TMPDIR", "TMPDIR"):
        if variable in environment:
            return environment[variable], variable
    return "/tmp", "TMPDIR"


def most_bytes(pid: int) -> int:
    """Of the path of a folder that can be used by the Ray that the process `pid` starts."""
    return _SOCKET_BYTES - len(_BELOW.format(pid=pid))


def check_ray_folder(environment: Mapping[str, str], pid: int) -> None:
    """Make it, where it is not there; `pid` as in `most_bytes`. Raises `RayFolderUnfit`: Ray's own errors
    name neither the variable nor a limit."""
    folder, variable = ray_folder(environment)
    most = most_bytes(pid)
    size = len(os.fsencode(folder))
    if not folder.isascii():
        why = "has other characters than ASCII, which Ray cannot read"
    elif size > most:
        why = f"has {size} bytes, of which sockets leave it {most} at most"
    else:
        try:
            # As Ray does next.
            os.makedirs(os.path.join(folder, "ray"), exist_ok=True)
            return
        except OSError as error:
            why = f"takes no files ({error.strerror})"
    raise RayFolderUnfit(
        f"Ray cannot keep its files below {variable}, {folder}: it {why}; "
        "set RAY_TMPDIR to another folder, such as /tmp"
    )
