"""Kubeconfigs as files: what of several counts, and the tokens that are kept in one.

Guarantees: of parts with one name the first file's counts, as for kubectl, and so does the first
current-context that is named; an error holds nothing of a file but names; in a file that tokens are kept in
nothing else changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rljob_client.identity import CredentialsError

_KINDS = ("cluster", "context", "user")


@dataclass(frozen=True)
class Part:
    """A named cluster, context or user."""

    name: str
    value: dict[str, Any] = field(repr=False)
    """Without keys that say nothing."""
    path: Path
    """The file that it is from."""

    @property
    def folder(self) -> Path:
        """What its files are relative to."""
        return self.path.absolute().parent


class KubeconfigFiles:
    """Several files as one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises `CredentialsError`."""
        self.where = ", ".join(map(str, paths))
        self.current: str | None = None
        """The current context; None where none is named."""
        self._parts: dict[tuple[str, str], Part] = {}
        for path in paths:
            self._add(path)

    def part(self, kind: str, name: Any) -> Part:
        """`kind`: cluster, context or user. Raises `CredentialsError` where there is none of this name."""
        found = self._parts.get((kind, name)) if isinstance(name, str) else None
        if found is None:
            raise CredentialsError(f"{self.where}: there is no {kind} named {name!r}")
        return found

    def _add(self, path: Path) -> None:
        config = _read(path)
        for kind in _KINDS:
            for name, value in _entries(path, kind, config.get(f"{kind}s")).items():
                self._parts.setdefault((kind, name), Part(name, value, path))
        current = config.get("current-context") or None
        if current is not None and not isinstance(current, str):
            raise CredentialsError(f"{path}: current-context must be text")
        self.current = self.current or current


def keep_tokens(user: Part, tokens: Mapping[str, str]) -> None:
    """Write them into the `config` of the user's `auth-provider`, where that is still there.

    Raises `OSError` and `CredentialsError`.
    """
    # Anew, since others write it, too.
    config = _read(user.path)
    kept = _entries(user.path, "user", config.get("users")).get(user.name, {}).get("auth-provider")
    if not isinstance(kept, dict) or not isinstance(kept.get("config"), dict):
        return
    kept["config"].update(tokens)
    user.path.write_text(yaml.safe_dump(config, allow_unicode=True, sort_keys=False))


def _read(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise CredentialsError(f"{path}: cannot read the kubeconfig: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        # The parser's own message quotes the file, which holds secrets.
        raise CredentialsError(f"{path}: not valid YAML") from None
    if not isinstance(config, dict):
        raise CredentialsError(f"{path}: not a kubeconfig: it is no mapping")
    return config


def _entries(path: Path, kind: str, entries: Any) -> dict[str, dict[str, Any]]:
    """Of each name what is said of it, without what says nothing: to kubectl that is not there."""
    found: dict[str, dict[str, Any]] = {}
    if not isinstance(entries or [], list):
        raise CredentialsError(f"{path}: {kind}s must be a list")
    for entry in entries or ():
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise CredentialsError(f"{path}: an entry of {kind}s has no name that is text")
        if entry["name"] in found:
            raise CredentialsError(f"{path}: there are two {kind}s named {entry['name']!r}")
        said = entry.get(kind) or {}
        if not isinstance(said, dict):
            raise CredentialsError(f"{path}: {kind} {entry['name']!r} must be a mapping")
        found[entry["name"]] = {key: value for key, value in said.items() if value not in ("", None)}
    return found
