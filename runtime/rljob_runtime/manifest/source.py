"""YAML text as plain values together with the line of every field.

Guarantees: scalars mean what they mean to kubectl (1e-6 is a number, 1:30 and 2026-01-01 are strings);
exactly one document, a mapping with string keys; a doubled key is an error. All errors of this kind found
in one pass are reported together.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from rljob_api.errors import Path
from rljob_runtime.manifest.readings import Reading, reading
from rljob_runtime.manifest.yaml_words import what

_MAX_NODES = 100_000
"""With aliases a file of a few lines can stand for billions of values; a manifest has a few hundred."""
_MAX_DEPTH = 100
"""An alias may also stand inside what it names, without end."""
_MAX_DIGITS = 1_000
"""Python reads no number of more than some thousands; the largest that a field may have takes twenty."""
_TOO_DEEP = f"nested too deeply: more than {_MAX_DEPTH} levels, or a part that holds itself"


@dataclass(frozen=True)
class YamlSource:
    """A parsed document."""

    value: dict[str, Any]
    lines: dict[Path, int]
    """Line, from 1, of every mapping key and list item."""
    blank: tuple[Path, ...] = ()
    """Keys behind which nothing is written, not even null."""
    text: str = ""
    """All of the file."""
    readings: dict[Path, Reading] = field(default_factory=dict)
    """Values that do not look as they are written."""

    def line(self, path: Path) -> int:
        """Line of the field at a path, or of the nearest field above it that is written down."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class YamlError(ValueError):
    """The text is no single YAML mapping; `faults` are (line from 1, what is wrong)."""

    def __init__(self, faults: list[tuple[int, str]]) -> None:
        super().__init__("; ".join(f"line {line}: {fault}" for line, fault in faults))
        self.faults = faults


class _Loader(yaml.SafeLoader):
    """SafeLoader with kubectl's reading of numbers, and no dates."""


# PyYAML follows YAML 1.1, in which 1e-6 is text for lack of a dot, 1:30 is 90, and 2026-01-01 is a date.
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]*|[1-9][0-9_]*)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
}
_REPLACED = {*_NUMBERS, "tag:yaml.org,2002:timestamp"}
# A dict of its own: the one that is inherited belongs to every SafeLoader of this process.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    digits = loader.construct_scalar(node).replace("_", "").lower()
    # `int(..., 0)` knows octals as 0o17 and refuses the 017 of YAML 1.1.
    octal = re.fullmatch(r"([-+]?)0([0-7]+)", digits)
    try:
        return int(f"{octal[1]}0o{octal[2]}" if octal else digits, 0)
    except ValueError:
        if len(digits) > _MAX_DIGITS:
            raise ValueError(f"a number of {len(digits):,} digits is too long") from None
        raise ValueError(f"{digits} is no number: put it in quotes if it is text") from None


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node).lower().replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


def parse(text: str) -> YamlSource:
    """The one mapping that the text holds; raises `YamlError`."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        raise YamlError([(text.count("\n", 0, error.position) + 1, f"not text: {error.reason}")]) from error
    try:
        node = _only_document(loader)
        if not isinstance(node, yaml.MappingNode):
            raise YamlError(
                [(1, "the file must hold fields with values (manifests begin with apiVersion and kind)")]
            )
        return replace(_Reader(loader).read(node), text=text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError([(mark.line + 1 if mark else 1, f"not YAML: {what(error, text)}")]) from error
    except RecursionError:
        raise YamlError([(loader.line + 1, _TOO_DEEP)]) from None


def _only_document(loader: _Loader) -> yaml.Node:
    """The one document that holds anything."""
    found = None
    while loader.check_node():
        node = loader.get_node()
        # Nothing between two `---`; an empty text in quotes has a style and counts.
        if node is None or (isinstance(node, yaml.ScalarNode) and not node.value and not node.style):
            continue
        if found is not None:
            line = node.start_mark.line + 1
            raise YamlError([(line, "a second document begins here; one file holds one RLJob")])
        found = node
    if found is None:
        raise YamlError([(1, "the file is empty")])
    return found


def _joined(text: str) -> str:
    """The text, with halves of characters, as JSON writes those beyond U+FFFF, put together."""
    if not any("\ud800" <= each <= "\udfff" for each in text):
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        half = next(each for each in text if "\ud800" <= each <= "\udfff")
        raise ValueError(
            f"a \\u{ord(half):04x} is half of a character, and the other half is not there"
        ) from None


class _Reader:
    """Turns nodes into values and remembers their lines."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self._lines: dict[Path, int] = {}
        self._blank: list[Path] = []
        self._readings: dict[Path, Reading] = {}
        self._faults: list[tuple[int, str]] = []
        self._nodes = 0

    def read(self, node: yaml.MappingNode) -> YamlSource:
        value = self._mapping(node, ())
        if self._faults:
            raise YamlError(sorted(self._faults))
        return YamlSource(value, self._lines, tuple(self._blank), readings=self._readings)

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise YamlError(
                [(node.start_mark.line + 1, "too large: aliases repeat without end, or nearly so")]
            )
        if len(path) > _MAX_DEPTH:
            raise YamlError([(node.start_mark.line + 1, _TOO_DEEP)])
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                self._lines[(*path, index)] = item.start_mark.line + 1
                items.append(self._value(item, (*path, index)))
            return items
        try:
            value = self._loader.construct_object(node)
            plain = isinstance(node, yaml.ScalarNode) and not node.style
            if plain and (found := reading(node.value, value)) is not None:
                self._readings[path] = found
            return _joined(value) if isinstance(value, str) else value
        except (yaml.constructor.ConstructorError, ValueError) as error:
            why = getattr(error, "problem", None) or str(error)
            self._faults.append((node.start_mark.line + 1, f"cannot read this value: {why}"))
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        # Before the merge: a key may replace one that comes in by <<, which is written elsewhere.
        self._refuse_doubled_keys(node)
        try:
            self._loader.flatten_mapping(node)
        except yaml.constructor.ConstructorError as error:
            mark = error.problem_mark or node.start_mark
            self._faults.append((mark.line + 1, f"cannot merge this with <<: {error.problem}"))
            return {}
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                # Such as {{ name }}, which to YAML is a mapping whose key is one.
                hint = (
                    " (a template that nobody has filled in?)"
                    if isinstance(key_node, yaml.MappingNode)
                    else ""
                )
                self._faults.append((line, f"a key must be a plain word{hint}"))
                continue
            key = key_node.value
            self._lines[(*path, key)] = line
            if isinstance(value_node, yaml.ScalarNode) and not value_node.value and not value_node.style:
                self._blank.append((*path, key))
            result[key] = self._value(value_node, (*path, key))
        return result

    def _refuse_doubled_keys(self, node: yaml.MappingNode) -> None:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                continue
            line = key_node.start_mark.line + 1
            if key_node.value in seen:
                first = seen[key_node.value]
                self._faults.append((line, f"{key_node.value} is written twice (first in line {first})"))
            seen.setdefault(key_node.value, line)
