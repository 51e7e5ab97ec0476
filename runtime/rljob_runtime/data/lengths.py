"""How long prompts are, in tokens.

Guarantees: a prompt that is within the limit is measured exactly; of one that is far above it only the head
is tokenized, so that a row of megabytes costs no more than a row that fits. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_runtime.data.tokenizer import TextTokenizer

_HEAD_CHARACTERS = 32
"""Of a long text so many characters for each token of the limit, its head, are tokenized first. Common text
has about four characters to a token, so that this is eight times what may be needed."""
_FAR_ABOVE = 2
"""A head of more than this many times the limit in tokens decides that the prompt is too long. The factor
leaves room for the tokens at the cut, which may be others than in the whole text."""


@dataclass(frozen=True)
class Length:
    """The length of one prompt."""

    tokens: int
    at_least: bool = False
    """The prompt was not tokenized to its end; it has more tokens."""

    def __str__(self) -> str:
        if self.at_least:
            return f"more than {self.tokens} tokens"
        return f"{self.tokens} token{'' if self.tokens == 1 else 's'}"


def lengths(tokenizer: TextTokenizer, texts: Sequence[tuple[str, bool]], limit: int) -> list[Length]:
    """The length of each text; beside each stands whether it is `rendered` (see `TextTokenizer.encode`).
    `limit`: tokens that a prompt may have. Raises `DataError` for text that has no tokens."""
    reach = _HEAD_CHARACTERS * limit
    # One call for each kind of text: tokenizers take many texts at a time.
    plain = iter(tokenizer.encode_many([text[:reach] for text, rendered in texts if not rendered]))
    chats = iter(tokenizer.encode_many([text[:reach] for text, rendered in texts if rendered], rendered=True))
    found = []
    for text, rendered in texts:
        tokens, cut = len(next(chats if rendered else plain)), len(text) > reach
        # Text with unusually long tokens, such as runs of blanks: only the whole of it can tell.
        if cut and tokens <= _FAR_ABOVE * limit:
            tokens, cut = len(tokenizer.encode(text, rendered=rendered)), False
        found.append(Length(tokens, at_least=cut))
    return found
