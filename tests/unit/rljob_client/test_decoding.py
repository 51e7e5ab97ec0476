"""JSON that is nested deeper than Python's decoders go, and what stands beside it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_client.decoding import LEVELS, decode, shallow
from rljob_client.objects import Item, Page, WatchEvent

STORED = 10_000
"""Levels that an API server takes."""


def deep(levels, opened='{"a":', closed="}"):
    return opened * levels + "1" + closed * levels


def item(name, template, more="1"):
    return f'{{"metadata": {{"name": "{name}", "managedFields": {more}}}, "spec": {template}}}'


class TestDecode:
    @pytest.mark.parametrize("text", [deep(STORED), deep(STORED, "[", "]"), deep(5000, '[{"\\"}":', "}]")])
    def test_an_object_costs_no_other_of_its_page(self, text):
        page = (
            f'{{"metadata": {{}}, "items": [{item("a", "{}")}, {item("b", text, text)}, {item("c", "1")}]}}'
        )
        found = decode(page.encode(), Page[Item])
        assert [each.metadata.name for each in found.items] == ["a", "b", "c"]

    def test_an_event_of_a_watch(self):
        line = f'{{"type": "ADDED", "object": {item("a", deep(STORED))}}}'
        event = decode(line.encode(), WatchEvent)
        assert decode(event.object, Item).metadata.name == "a"

    def test_what_is_left_tells_that_there_was_more(self):
        left, levels = decode(deep(STORED).encode(), dict[str, Any]), 0
        while isinstance(left, dict):
            left, levels = left["a"], levels + 1
        assert (left, levels) == (None, LEVELS)

    @pytest.mark.parametrize("text", [deep(STORED)[:-1], deep(STORED) + "}", '{"a": ' * STORED, "{"])
    def test_no_json_is_still_none(self, text):
        with pytest.raises(msgspec.DecodeError):
            decode(text.encode(), dict[str, Any])

    @pytest.mark.parametrize("more", ["1", deep(STORED)], ids=["plain", "deep"])
    def test_words_that_are_no_utf_8_are_no_json(self, more):
        text = f'{{"message": "Zeit\xfcberschreitung", "more": {more}}}'
        with pytest.raises(msgspec.DecodeError):
            decode(text.encode("latin-1"), dict[str, Any])


VALUES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


def cut(value, levels):
    if not isinstance(value, (list, dict)):
        return value
    if levels == 0:
        return None
    if isinstance(value, list):
        return [cut(each, levels - 1) for each in value]
    return {key: cut(each, levels - 1) for key, each in value.items()}


class TestShallow:
    @given(VALUES, st.integers(1, 4), st.booleans())
    def test_only_what_is_deeper_is_left_out(self, value, levels, ascii_only):
        text = json.dumps(value, ensure_ascii=ascii_only).encode()
        assert json.loads(shallow(text, levels)) == cut(value, levels)
