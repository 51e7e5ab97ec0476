"""What a kubeconfig says of its credential command, under `exec`. Pure.

Guarantees: what is no such command, or could not be run, is refused with the field and what is allowed; no
error holds an argument or a variable's value, which may be secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MODES = ("Never", "IfAvailable", "Always")


@dataclass(frozen=True)
class ExecConfig:
    """A command that logs in."""

    api_version: str
    """Of the ExecCredential that it is asked for, and gives."""
    words: tuple[str, ...] = field(repr=False)
    """The program and its arguments."""
    environment: Mapping[str, str] = field(repr=False)
    """Variables added to those of this process."""
    interactive: bool
    """It may ask somebody, where there is a terminal."""
    tells_cluster: bool
    """It wants to know about the cluster."""
    hint: str
    """How to install it; may be empty."""

    @property
    def program(self) -> str:
        """What is run."""
        return self.words[0]


def read_config(config: Any) -> ExecConfig:
    """The value of `exec`. Raises `ValueError`."""
    if not isinstance(config, Mapping):
        raise ValueError("exec must be a mapping with apiVersion and command")
    program = _text(config, "command", "exec")
    if not program:
        raise ValueError("exec.command must not be empty")
    mode, tells_cluster = (
        config.get("interactiveMode") or _MODES[1],
        config.get("provideClusterInfo") or False,
    )
    if mode not in _MODES:
        raise ValueError(f"exec.interactiveMode must be {_MODES[0]}, {_MODES[1]} or {_MODES[2]}")
    if not isinstance(tells_cluster, bool):
        raise ValueError("exec.provideClusterInfo must be true or false, without quotes")
    arguments = [_checked(argument, f"exec.args[{at}]") for at, argument in enumerate(_items(config, "args"))]
    return ExecConfig(
        _text(config, "apiVersion", "exec"),
        (program, *arguments),
        dict(_variable(entry, f"exec.env[{at}]") for at, entry in enumerate(_items(config, "env"))),
        interactive=mode != _MODES[0],
        tells_cluster=tells_cluster,
        hint=_checked(config.get("installHint") or "", "exec.installHint"),
    )


def _items(config: Mapping[str, Any], name: str) -> list[Any]:
    value = config.get(name)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"exec.{name} must be a list")
    return value or []


def _variable(entry: Any, where: str) -> tuple[str, str]:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where} must be a mapping with name and value")
    name = _text(entry, "name", where)
    # As kubectl takes it.
    value = _text(entry, "value", where) if entry.get("value") is not None else ""
    if not name or "=" in name:
        raise ValueError(f'{where}.name must not be empty, nor hold "="')
    return name, value


def _text(config: Mapping[str, Any], name: str, where: str) -> str:
    if name not in config:
        raise ValueError(f"{where}.{name} is missing")
    return _checked(config[name], f"{where}.{name}")


def _checked(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} must be text: a number, yes or no stands in quotes")
    # A program can be given neither: a NUL ends a text, and half of a surrogate pair is none.
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{where} must be text without NUL characters and halves of surrogate pairs")
    return value
