"""What is said of a field, wherever its model is written."""

from typing import Any

import pytest
from pydantic import BaseModel

from rljob_api.descriptions import description


class Parent(BaseModel):
    size: int = 1
    """How large
    it is."""
    name: str = ""
    """Of the parent."""
    silent: int = 0


class Child(Parent):
    name: str = ""
    """Of the child."""
    size: int = 2

    class Inner(BaseModel):
        depth: int = 0
        """Inside."""


def local() -> type[BaseModel]:
    class Inner(BaseModel):
        depth: int = 0
        """In a function."""

    return Inner


@pytest.mark.parametrize(
    ("model", "name", "said"),
    [
        (Parent, "size", "How large\nit is."),
        (Parent, "silent", ""),
        (Parent, "missing", ""),
        (Child, "name", "Of the child."),
        (Child, "size", "How large\nit is."),
        (Child.Inner, "depth", "Inside."),
        (local(), "depth", "In a function."),
    ],
    ids=str,
)
def test_what_is_said(model: type[BaseModel], name: str, said: str) -> None:
    assert description(model, name) == said


def test_nothing_is_said_where_there_is_no_source() -> None:
    scope: dict[str, Any] = {"__name__": "sys"}
    exec("from pydantic import BaseModel\nclass Made(BaseModel):\n    size: int = 1\n    'Large.'", scope)  # noqa: S102
    assert description(scope["Made"], "size") == ""
