"""Errors about data: one line that says what is wrong, where, and what to do."""

import re
from pathlib import Path

from rljob_api.errors import nearest

GZIP = b"\x1f\x8b"
"""What a file of gzip begins with."""
COMPRESSED = "the file is compressed: unpack it with gunzip"

LFS = b"version https://git-lfs"
"""What a file begins with that stands in the place of one that Git LFS keeps."""
IN_LFS = "the file itself is kept by Git LFS, and was not fetched: git lfs pull does it"


class DataError(ValueError):
    """The prompts or the tokenizer cannot be used."""

    source: int | None = None
    """Which of data.sources it is about, from 0; None where there are none, or it is about no one of them."""


class AnswersMissing(DataError):
    """No row has an answer, and some must. `fault` says what is wrong, `near` what name was meant."""

    def __init__(self, fault: str, near: str | None = None) -> None:
        super().__init__(f"{fault}. Did you mean {near}?" if near else fault)
        self.fault = fault
        self.near = near


class PromptMissing(DataError):
    """A row has no field of the name that the manifest gives for the prompts. `there`: those that it has."""

    def __init__(self, message: str, there: list[str]) -> None:
        super().__init__(message)
        self.there = there


class RewardFieldMissing(DataError):
    """No row has a field that the reward is to get: the one at `index` of data.rewardFields. `fault` says
    what is wrong, `near` what name was meant."""

    def __init__(self, fault: str, index: int, near: str | None = None) -> None:
        super().__init__(f"{fault}. Did you mean {near}?" if near else fault)
        self.fault = fault
        self.index = index
        self.near = near


def unreadable(path: Path, error: OSError) -> DataError:
    """Why a file of prompts cannot be opened or read."""
    if isinstance(error, IsADirectoryError):
        return DataError(
            f"{path} is a folder, and one file is named here: a folder of JSON Lines or parquet files, or "
            "one that datasets has saved, is named by huggingFace.name"
        )
    advice = not_expanded(path) if isinstance(error, FileNotFoundError) else ""
    return DataError(f"{path}: {error.strerror or one_line(error)}{advice}")


def not_expanded(path: Path) -> str:
    """What to say of a path that is not there, where a shell would have made another of it; else nothing."""
    for part in path.parts:
        # A file may be called $x or ~x: that it is not there has been found out.
        if re.match(r"~|\$[A-Za-z_{]", part):
            return (
                f": a path is taken as it is written, and {part} is not expanded, for pods have another home "
                "and environment: write the whole path, or one relative to the manifest's folder (in a "
                "cluster, to storage.mountPath)"
            )
    return ""


def missing_name(kind: str, name: str, available: list[str]) -> str:
    """`no field "promt". Did you mean prompt? It has: prompt, answer`; at most twelve names are listed."""
    near = nearest(name, available)
    hint = f" Did you mean {near}?" if near else ""
    return f'no {kind} "{name}".{hint} It has: {listed(available)}'


def listed(names: list[str]) -> str:
    """`prompt, answer`; at most twelve names."""
    more = ", …" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more if names else "nothing"


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of an exception without line breaks. Half of a surrogate pair, which cannot be written as
    UTF-8, stands in it as Python escapes it."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - one of a user's own may have any `__str__`
        said = "(its message cannot be read)"
    text = " ".join(said.encode(errors="backslashreplace").decode().split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
