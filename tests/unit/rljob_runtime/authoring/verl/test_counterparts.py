"""The table of counterparts, as a whole."""

import re

import pytest

from rljob_runtime.authoring.fields import refusal
from rljob_runtime.authoring.verl.counterparts import TABLE
from rljob_runtime.authoring.verl.table import Section, Table, built, none

ROWS = [row for section in TABLE.sections for row in section.rows]


def test_a_key_has_one_row():
    with pytest.raises(ValueError, match=r"two rows for a\.b"):
        Table((Section("One", (none("a.b", text="x"), built("a.b", text="y"))),))


def test_the_longest_group_of_a_key_counts():
    rows = (none("a.*", text="x"), none("a.b.*", text="y"), none("a.b.c", text="z"))
    table = Table((Section("One", rows),))
    assert [getattr(table.row(key), "plain_text", None) for key in ("a.z", "a.b.z", "a.b.c", "b")] == [
        "x",
        "y",
        "z",
        None,
    ]


def test_what_a_field_takes_it_can_have():
    samples = {"integer": 64, "number": 0.2, "flag": True, "text": "x"}
    direct = [row for row in ROWS if row.field is not None]
    assert len(direct) > 20
    for row in direct:
        why = refusal(f"spec.{row.field}", samples[row.kind])
        assert why is None, (row.keys, why)


def test_text_for_a_terminal_has_no_marks():
    assert none("a", text="see [`x`](y.md#z)").plain_text == "see x"
    for row in ROWS:
        assert not re.search(r"[`\[]\S*\]\(", row.plain_text)


def test_a_value_that_verl_has_off_does_not_differ():
    row = none("a", text="x", off=("1", "false"))
    assert [row.differs(value) for value in ("1", "False", "2", "True")] == [False, False, True, True]
    assert not none("a", text="x").differs("anything")


def test_keys_of_one_folder_are_shown_short():
    markdown = Table((Section("One", (none("a.b.c", "a.b.d", "e", text="x"),)),)).markdown()
    assert markdown == "## One\n\n| key | field |\n|---|---|\n| `a.b.c`, `d`, `e` | none: x |\n"
