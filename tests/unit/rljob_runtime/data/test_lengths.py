"""How long prompts are, and how much text is tokenized to find out."""

from collections.abc import Sequence

import pytest

from rljob_runtime.data.lengths import Length, lengths
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.samples import Tokens


class Counting(CharacterTokenizer):
    """Notes how many characters it is given; spaces are no tokens."""

    def __init__(self) -> None:
        super().__init__("ab")
        self.characters = 0

    def encode(self, text: str, *, rendered: bool = False) -> Tokens:
        self.characters += len(text)
        return super().encode(text.replace(" ", ""), rendered=rendered)

    def encode_many(self, texts: Sequence[str], *, rendered: bool = False) -> list[Tokens]:
        return [self.encode(text, rendered=rendered) for text in texts]


@pytest.mark.parametrize(
    ("text", "rendered", "expected"),
    [
        ("ab", False, Length(4)),
        ("ab", True, Length(2)),
        ("", True, Length(0)),
        ("a" * 320, True, Length(320)),
        ("a" * 321, True, Length(320, at_least=True)),
        ("a" * 4_000_000, False, Length(322, at_least=True)),
        (" " * 4_000_000, False, Length(2)),
        (" " * 4_000_000 + "ab", False, Length(4)),
        ("ab" + " " * 4_000_000, True, Length(2)),
        (("a" + " " * 99) * 21, True, Length(21)),
    ],
    ids=["plain", "rendered", "nothing", "just looked at whole", "one more", "long", "blank", "blanks first",
         "blanks last", "few tokens to a character"],
)  # fmt: skip
def test_lengths(text: str, rendered: bool, expected: Length) -> None:
    assert lengths(Counting(), [("a", False), (text, rendered)], limit=10)[1] == expected


def test_of_a_text_that_is_far_too_long_only_the_head_is_tokenized() -> None:
    tokenizer = Counting()
    assert lengths(tokenizer, [("a" * 4_000_000, False)] * 3, limit=10)[0].at_least
    assert tokenizer.characters == 3 * 320


@pytest.mark.parametrize(
    ("length", "told"),
    [
        (Length(7), "7 tokens"),
        (Length(1), "1 token"),
        (Length(320, at_least=True), "more than 320 tokens"),
    ],
)
def test_a_length_in_words(length: Length, told: str) -> None:
    assert str(length) == told
