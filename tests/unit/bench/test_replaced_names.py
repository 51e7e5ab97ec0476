"""Names that benches replace, or time, in the runtime by a string are there: no type checker sees them."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

BENCHES = Path(__file__).parents[2] / "bench"


class Replaced(NamedTuple):
    """A call such as `setattr(step, "Prefetched", other)` in a bench."""

    bench: str
    line: int
    owner: str
    """What of the project the bench imported: a module, or a class of one."""
    name: str

    def __str__(self) -> str:
        return f"{self.bench}:{self.line} {self.owner}.{self.name}"


def replaced_in(source: str, bench: str) -> Iterator[Replaced]:
    """Calls whose first argument was imported from the project and whose second is a string, or a loop's
    variable that goes over strings."""
    tree = ast.parse(source)
    imported: dict[str, set[str]] = {}
    looped: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rljob_"):
            for each in node.names:
                imported.setdefault(each.asname or each.name, set()).add(f"{node.module}.{each.name}")
        elif isinstance(node, ast.For):
            target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
            if isinstance(target, ast.Name):
                looped.setdefault(target.id, set()).update(_strings_of(node.iter))
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[ast.Name(id=owner), ast.Constant(value=str(name)), *_]):
                names = {name}
            case ast.Call(args=[ast.Name(id=owner), ast.Name(id=variable), *_]):
                names = looped.get(variable, set())
            case _:
                continue
        for place in sorted(imported.get(owner, ())):
            for name in sorted(names):
                yield Replaced(bench, node.lineno, place, name)


def _strings_of(node: ast.expr) -> set[str]:
    """Of a tuple or list, or the keys of a dictionary's items."""
    match node:
        case ast.Tuple(elts=found) | ast.List(elts=found):
            pass
        case ast.Call(func=ast.Attribute(value=ast.Dict(keys=found), attr="items")):
            pass
        case _:
            return set()
    return {each.value for each in found if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def resolved(path: str) -> Any:
    """The module or the module's attribute of that name."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as missing:
        if missing.name != path and not path.startswith(f"{missing.name}."):
            raise
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


EVERY = [
    each
    for path in sorted(BENCHES.rglob("*.py"))
    for each in replaced_in(path.read_text(encoding="utf-8"), str(path.relative_to(BENCHES)))
]


@pytest.mark.parametrize("replaced", EVERY, ids=str)
def test_it_is_there(replaced: Replaced) -> None:
    assert hasattr(resolved(replaced.owner), replaced.name)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("setattr(step, 'Prefetched', 1)", {"Prefetched"}),
        ("def f():\n    with patch.object(step, 'Ahead', 1): pass", {"Ahead"}),
        ("for each in ('a', 'b'):\n    watch.time(step, each)", {"a", "b"}),
        ("for name, value in {'a': 1}.items():\n    setattr(step, name, value)", {"a"}),
        ("setattr(other, 'Prefetched', 1)", set()),
        ("print(step)", set()),
    ],
)
def test_what_counts_as_a_replaced_name(source: str, found: set[str]) -> None:
    imports = "from rljob_runtime.trainer import step\nfrom elsewhere import other\n"
    assert {each.name for each in replaced_in(imports + source, "bench.py")} == found


def test_benches_replace_something() -> None:
    assert {each.bench for each in EVERY} >= {"trainer_step.py", "step_start.py", "hosted_engine.py"}
