"""What the options of `rljob-operator` take. Pure.

Guarantees: each function returns a value that the operator can work with, or raises an
`argparse.ArgumentTypeError` that says what is allowed.
"""

import argparse
import math
import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NAME = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")


def count(given: str) -> int:
    """Of things of which one is needed."""
    return _integer(given, 1, None)


def port(given: str) -> int:
    """A TCP port; 0: a free one."""
    return _integer(given, 0, 65_535)


def rate(given: str) -> float:
    """Times a second."""
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{given!r} is not a number above 0, such as 200 or 0.5")
    return value


def namespace(given: str) -> str:
    """The name of a namespace."""
    if len(given) > 63 or not _LABEL.fullmatch(given):
        raise argparse.ArgumentTypeError(
            f"{given!r} is no namespace: up to 63 of a-z, 0-9 and -, with a letter or digit at both ends"
        )
    return given


def name(given: str) -> str:
    """The name of an object."""
    if len(given) > 253 or not _NAME.fullmatch(given):
        raise argparse.ArgumentTypeError(
            f"{given!r} is no name of an object: up to 253 of a-z, 0-9, - and ., with a letter or digit at "
            "both ends and on both sides of each ."
        )
    return given


def _integer(given: str, least: int, most: int | None) -> int:
    try:
        value = int(given)
    except ValueError:
        value = least - 1
    if value < least or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise argparse.ArgumentTypeError(f"{given!r} is not a whole number {allowed}")
    return value
