"""What is said of each field: the docstring below it in the source of its model.

Guarantees: nothing is read before it is asked for. Few processes ask, and to read it for all models takes as
long as to make the models, which every process of a job does.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def description(model: type[BaseModel], name: str) -> str:
    """What is said of a field, by its Python name, in this model or the nearest that it inherits from; empty
    where nothing is said, or where the source is not there."""
    for each in model.__mro__:
        if said := _in_module(each.__module__).get(each.__qualname__, {}).get(name):
            return said
    return ""


@cache
def _in_module(module: str) -> Mapping[str, Mapping[str, str]]:
    """What is said of the fields of each class of a module, by its qualified name."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # there is none: of a module that is built in, or installed without it
        return {}
    return dict(_classes(ast.parse(source).body, ""))


def _classes(body: list[ast.stmt], within: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for node in body:
        if isinstance(node, _Definition):
            name = within + node.name
            if isinstance(node, ast.ClassDef):
                yield name, _fields(node)
            yield from _classes(
                node.body, f"{name}." if isinstance(node, ast.ClassDef) else f"{name}.<locals>."
            )


def _fields(node: ast.ClassDef) -> Mapping[str, str]:
    said = {}
    for field, after in zip(node.body, node.body[1:], strict=False):
        match field, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                said[name] = inspect.cleandoc(text)
    return said
