"""A credential command for tests, as a kubeconfig names it under `exec`."""

import json
import os
import select
import sys
from pathlib import Path
from typing import Any

from tests.support.operator.certificates import Pair

_SECONDS = 60.0
VERSION = "client.authentication.k8s.io/v1"
_PROGRAM = """#!{python}
import os, sys
os.chdir({folder!r})
with open("asked", "a") as asked:
    asked.write(os.environ["KUBERNETES_EXEC_INFO"] + "\\n")
times = len(open("asked").readlines())
if os.path.exists("gate"):
    open("held", "w").write("held")
    open("gate").read()
if os.path.exists("words"):
    sys.exit(open("words").read())
answers = open("answers").readlines()
print(answers[min(times, len(answers)) - 1])
"""


class Command:
    """Gives what `answers` says, one line for each time it is run, the last one for ever."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = folder / "login"
        self.program.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)))
        self.program.chmod(0o700)

    def answers(self, *statuses: dict[str, Any]) -> dict[str, Any]:
        """The user of a kubeconfig who has this command."""
        lines = [{"apiVersion": VERSION, "kind": "ExecCredential", "status": status} for status in statuses]
        (self._folder / "answers").write_text("\n".join(map(json.dumps, lines)))
        command = {"apiVersion": VERSION, "command": "./login", "interactiveMode": "IfAvailable"}
        return {"exec": {**command, "provideClusterInfo": True}}

    def fails(self, words: str | None) -> None:
        """From now on it says this and fails; None: no more."""
        file = self._folder / "words"
        file.write_text(words) if words is not None else file.unlink()

    def hold(self) -> None:
        """From now on it waits for `release` before it answers."""
        os.mkfifo(self._folder / "gate")
        os.mkfifo(self._folder / "held")

    def held(self) -> None:
        """Wait until it waits."""
        # What opens it for a writer to come does not wait for one.
        with open(os.open(self._folder / "held", os.O_RDONLY | os.O_NONBLOCK)) as told:
            assert select.select([told], [], [], _SECONDS)[0], "nobody has asked the command"

    def release(self) -> None:
        """Once it is `held`, let it answer."""
        with open(self._folder / "gate", "w"):
            pass

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What it was asked for, each time."""
        return [json.loads(line) for line in (self._folder / "asked").read_text().splitlines()]


def shown(pair: Pair) -> dict[str, Any]:
    """The status that gives a certificate and its key."""
    return {"clientCertificateData": pair.certificate.read_text(), "clientKeyData": pair.key.read_text()}
