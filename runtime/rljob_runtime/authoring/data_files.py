"""What a file of prompts is by its name. Pure.

Guarantees: capitals in the ending of a name, as some systems write it, make no difference.
"""

_KINDS = ("jsonl", "parquet")
"""Fields of `training.data` that name a file, each called as the names of such files end."""
_OTHERS = ("csv", "json", "txt", "arrow")
"""Of files that hold data and cannot be read."""


def kind_of(name: str) -> str | None:
    """The field of `training.data` for a file of this name; None where it is no name of one."""
    ending = _ending(name)
    return ending if ending in _KINDS else None


def is_other(name: str) -> bool:
    """Whether it is the name of a file that holds data in another format."""
    return _ending(name) in _OTHERS


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""
