"""The table of counterparts: each key of verl's configuration, and the field of an RLJob that stands for it.

The same rows convert a script and make the tables of docs/moving-from-verl.md.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_runtime.authoring.verl.values import Kind, scalar


@dataclass(frozen=True)
class Row:
    """What stands for one key, or for several that belong together."""

    keys: tuple[str, ...]
    """Full names; one that ends in `.*` stands for all keys below it. None in a row for readers alone."""
    text: str
    """For people, in Markdown: the field, or `none: ` and what that means."""
    field: str | None = None
    """The field, below spec, that takes the value as it is."""
    kind: Kind = "text"
    """What the value of `field` must be."""
    off: tuple[str, ...] | None = None
    """Without a counterpart: values with which verl does as an RLJob does. None: it does so with any."""
    shown: str | None = None
    """The row's first cell, where it is not made of the keys."""

    @property
    def lost(self) -> bool:
        """Whether there is no counterpart."""
        return self.text.startswith("none: ")

    @property
    def plain_text(self) -> str:
        """`text` on a terminal, without `none: `."""
        return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", self.text.removeprefix("none: ")).replace("`", "")

    def differs(self, value: str) -> bool:
        """For a row without a counterpart: whether the value asks verl for something that an RLJob does not
        do."""
        return self.off is not None and str(scalar(value)).lower() not in self.off


@dataclass(frozen=True)
class Section:
    """Rows under one heading."""

    title: str
    rows: tuple[Row, ...]


def direct(key: str, field: str, kind: Kind, text: str | None = None) -> Row:
    """A key whose value a field takes as it is."""
    return Row((key,), text or f"`{field}`", field, kind)


def built(*keys: str, text: str) -> Row:
    """Keys that become fields together with others, by code of `convert`."""
    return Row(keys, text)


def none(*keys: str, text: str, off: tuple[str, ...] | None = None) -> Row:
    """Keys without a counterpart. Of a group (`.*`) nobody has looked at each key: any value but those of
    `off`, which are null and false where it is not given, differs."""
    if off is None and any(key.endswith(".*") for key in keys):
        off = ("none", "false")
    return Row(keys, f"none: {text}", off=off)


def harmless(*keys: str, text: str) -> Row:
    """Keys without a counterpart, groups of them as well, that change nothing of what is trained."""
    return Row(keys, f"none: {text}")


def said(shown: str, text: str) -> Row:
    """A row for readers alone."""
    return Row((), text, shown=shown)


class Table:
    """All rows, found by key."""

    def __init__(self, sections: Iterable[Section]) -> None:
        self.sections = tuple(sections)
        self._exact: dict[str, Row] = {}
        self._below: dict[str, Row] = {}
        for row in (row for section in self.sections for row in section.rows):
            for key in row.keys:
                into, name = (
                    (self._below, key.removesuffix("*")) if key.endswith(".*") else (self._exact, key)
                )
                if name in into:
                    raise ValueError(f"two rows for {key}")
                into[name] = row

    def row(self, key: str) -> Row | None:
        """The row of a key; the longest of those that stand for keys below a name."""
        if key in self._exact:
            return self._exact[key]
        fitting = [name for name in self._below if key.startswith(name)]
        return self._below[max(fitting, key=len)] if fitting else None

    @property
    def keys(self) -> list[str]:
        """Every key that a row names in full."""
        return list(self._exact)

    def markdown(self) -> str:
        """The sections, with a table each."""
        parts = []
        for section in self.sections:
            rows = [f"| {row.shown or _cell(row.keys)} | {row.text} |" for row in section.rows]
            parts.append("\n".join([f"## {section.title}", "", "| key | field |", "|---|---|", *rows, ""]))
        return "\n".join(parts)


def _cell(keys: tuple[str, ...]) -> str:
    """The keys; of one beside the key before it the last word alone."""
    shown, folder = [], ""
    for key in keys:
        above, _, name = key.rpartition(".")
        shown.append(name if above and above == folder else key)
        folder = above
    return ", ".join(f"`{each}`" for each in shown)
