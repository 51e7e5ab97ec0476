"""The tables of a page are those of the code."""

from pathlib import Path

import pytest

from tools.verl_page import MARK, page

PAGE = Path(__file__).parents[3] / "docs" / "moving-from-verl.md"


def test_the_page_is_up_to_date():
    text = PAGE.read_text()
    assert page(text) == text, "make crds writes the tables anew"


def test_what_stands_before_the_mark_is_kept():
    assert page(f"mine\n{MARK}old").startswith(f"mine\n{MARK}\n## ")


def test_a_page_without_a_mark():
    with pytest.raises(ValueError, match="has no line"):
        page("text")
