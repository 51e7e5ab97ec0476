"""Amounts of memory for people."""

import pytest

from rljob_runtime.site.sizes import amounts

GIB, MIB, KIB = 2**30, 2**20, 2**10


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((3 * GIB, 4 * GIB), ("3.0 GiB", "4.0 GiB")),
        ((GIB, GIB - 1), ("1,073,741,824 bytes", "1,073,741,823 bytes")),
        ((GIB, GIB - MIB), ("1024.0 MiB", "1023.0 MiB")),
        ((40 * MIB, 60 * MIB), ("40.0 MiB", "60.0 MiB")),
        ((0, 60 * MIB), ("0.0 MiB", "60.0 MiB")),
        ((0, KIB), ("0.0 KiB", "1.0 KiB")),
        ((1000, 0), ("1,000 bytes", "0 bytes")),
        ((5 * GIB // 2,), ("2.5 GiB",)),
        ((GIB, GIB), ("1.0 GiB", "1.0 GiB")),
        ((0,), ("0 bytes",)),
    ],
)
def test_amounts(counts: tuple[int, ...], words: tuple[str, ...]) -> None:
    assert amounts(*counts) == words
