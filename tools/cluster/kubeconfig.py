"""Kubeconfig files: whole or absent, and readable by their owner alone."""

import base64
import os
from pathlib import Path

import yaml


def write(path: Path, url: str, authority: str, token: str, namespace: str = "default") -> Path:
    """A kubeconfig of one cluster and one user. `authority`: the PEM certificate the server is checked by."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "rljob",
        "clusters": [
            {
                "name": "rljob",
                "cluster": {
                    "server": url,
                    "certificate-authority-data": base64.b64encode(authority.encode()).decode(),
                },
            }
        ],
        "users": [{"name": "rljob", "user": {"token": token}}],
        "contexts": [
            {"name": "rljob", "context": {"cluster": "rljob", "user": "rljob", "namespace": namespace}}
        ],
    }
    private_file(path, yaml.safe_dump(document, sort_keys=False))
    return path


def private_file(path: Path, text: str) -> None:
    """Writes a file of mode 0600, by renaming: a reader sees the old text or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    # O_EXCL below: the file is made anew with its mode, and not written into one that others can read.
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.replace(new, path)
