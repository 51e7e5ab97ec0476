import pytest

from rljob_runtime.trainer.hdp_attention import cheaper, copies


@pytest.mark.parametrize(
    ("heads", "shared", "degree", "kind"),
    [
        # Qwen3-8B: 8 key heads of 32.
        (32, 8, 2, "allGather"),
        (32, 8, 4, "ulysses"),
        (32, 8, 8, "ulysses"),
        # Two key heads: little to gather, and Ulysses would repeat them.
        (14, 2, 2, "allGather"),
        (64, 2, 8, "allGather"),
        # Every head has keys of its own: much to gather.
        (32, 32, 2, "ulysses"),
        # Heads that the degree does not divide.
        (14, 14, 4, "allGather"),
    ],
)
def test_cheaper(heads: int, shared: int, degree: int, kind: str) -> None:
    assert cheaper(heads, shared, degree) == kind


@pytest.mark.parametrize(
    ("heads", "shared", "degree", "repeated"),
    [
        (32, 8, 4, 1),
        (32, 8, 8, 1),
        (32, 8, 16, 2),
        (32, 8, 32, 4),
        (4, 1, 4, 4),
        # A member has heads 0, 1, 2 of two key heads with three heads each: of one key head alone.
        (12, 4, 4, 1),
        # Three key heads for two members: one of them would need half a head.
        (6, 3, 2, 2),
    ],
)
def test_copies(heads: int, shared: int, degree: int, repeated: int) -> None:
    """Query head h has key head h // (heads / shared): after repeating, a member's heads must have it too."""
    assert copies(heads, shared, degree) == repeated
    own, keys = heads // degree, shared * repeated // degree
    assert own % keys == 0
    for member in range(degree):
        for place in range(own):
            found = (member * keys + place // (own // keys)) // repeated
            assert found == (member * own + place) // (heads // shared)
