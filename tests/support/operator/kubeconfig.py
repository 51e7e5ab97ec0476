"""Kubeconfigs for tests."""

from pathlib import Path
from typing import Any

import yaml


def write_kubeconfig(
    path: Path, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **top: Any
) -> Path:
    """A kubeconfig with one context. `cluster` and `user` are added to its parts, `top` replaces keys."""
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump({**config, **top}))
    return path
