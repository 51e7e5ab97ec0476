import math

import pytest
import torch

from rljob_runtime.trainer.segments import Segments

CPU = torch.device("cpu")


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_segments_against_the_formula(window: int | None, scaling: float | None) -> None:
    """Queries are the last of their segment's tokens; four heads share two of keys, values are narrower."""
    torch.manual_seed(0)
    queries, keys = [3, 1, 5], [7, 1, 5]
    query = torch.randn(sum(queries), 4, 8, dtype=torch.float64)
    key = torch.randn(sum(keys), 2, 8, dtype=torch.float64)
    value = torch.randn(sum(keys), 2, 6, dtype=torch.float64)
    found = Segments.of(queries, keys, CPU, "rectangles").attend(query, key, value, scaling, window)
    assert found.shape == (9, 4, 6)
    for segment in range(3):
        first = sum(keys[:segment])
        for place in range(queries[segment]):
            row = sum(queries[:segment]) + place
            position = keys[segment] - queries[segment] + place
            oldest = 0 if window is None else max(0, position - window + 1)
            seen = slice(first + oldest, first + position + 1)
            for head in range(4):
                logits = key[seen, head // 2] @ query[row, head]
                logits *= 1 / math.sqrt(8) if scaling is None else scaling
                expected = logits.softmax(0) @ value[seen, head // 2]
                torch.testing.assert_close(found[row, head], expected)
