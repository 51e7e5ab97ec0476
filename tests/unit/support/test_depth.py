"""How many examples property tests try."""

import pytest

from tests.support.depth import examples
from tools.tiers.stages import FEW_EXAMPLES


@pytest.mark.parametrize(
    ("few", "whole", "tried"),
    [(False, 100, 100), (True, 300, 100), (True, 100, 34), (True, 6, 2), (True, 1, 1)],
)
def test_a_third_is_tried_where_somebody_waits(monkeypatch, few, whole, tried):
    monkeypatch.delenv(FEW_EXAMPLES, raising=False)
    if few:
        monkeypatch.setenv(FEW_EXAMPLES, "1")
    assert examples(whole) == tried
