"""What is drafted from a response's own text and from its siblings."""

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.engines.drafter import Drafter, Row

PROMPT, OTHER = b"prompt", b"other"


def tokens(text: str) -> NDArray[np.int32]:
    return np.array([ord(letter) for letter in text], np.int32)


def row(text: str, name: str = "r", prompt: bytes = PROMPT, room: int = 99) -> Row:
    return Row(name, tokens(text), prompt, room)


def drafts(drafter: Drafter, *rows: Row) -> list[str]:
    return ["".join(map(chr, draft)) for draft in drafter.draft(list(rows))]


def drafter(
    draft_tokens: int = 2, minimum_match: int = 2, kept_tokens: int = 100, read_tokens: int = 1
) -> Drafter:
    return Drafter(draft_tokens, minimum_match, 0.2, kept_tokens, read_tokens)


def test_a_draft_is_what_followed_then() -> None:
    assert drafts(drafter(draft_tokens=4), row("xabcdefghyab")) == ["cdef"]


def test_a_draft_is_not_longer_than_asked_for_or_than_there_is_room() -> None:
    assert drafts(drafter(draft_tokens=3), row("xabcdefghyabcd")) == ["efg"]
    assert drafts(drafter(), row("xabcdefghyabcd", room=1)) == ["e"]
    assert drafts(drafter(), row("xabcdefghyabcd", room=0)) == [""]
    assert drafts(drafter(), row("xabcdefghyabcd", room=-1)) == [""]


def test_a_match_that_is_too_short_drafts_nothing() -> None:
    assert drafts(drafter(minimum_match=3), row("abcdyab")) == [""]
    assert drafts(drafter(), row("abcdef")) == [""]
    assert drafts(drafter(), row("")) == [""]


def test_finished_siblings_are_drafted_from_one_after_another() -> None:
    subject = drafter()
    subject.learn(PROMPT, tokens("abcd"))
    subject.learn(PROMPT, tokens("abxyz"))
    assert drafts(subject, row("-ab")) == ["cd"]
    assert drafts(subject, row("-ab")) == ["xy"]
    assert drafts(subject, row("-ab")) == ["xy"]


def test_a_sibling_of_each_is_read_before_a_second_one_of_any() -> None:
    subject, rows = drafter(), [row("-ab", "one"), row("-ef", "two", OTHER)]
    for text in ("abcd", "abxyz"):
        subject.learn(PROMPT, tokens(text))
    subject.learn(OTHER, tokens("efgh"))
    assert drafts(subject, *rows) == ["cd", ""]
    assert drafts(subject, *rows) == ["cd", "gh"]
    assert drafts(subject, *rows) == ["xy", "gh"]


def test_short_texts_are_read_at_once() -> None:
    subject, rows = drafter(read_tokens=9), [row("abcdab", "one"), row("-ef", "two", OTHER)]
    subject.learn(OTHER, tokens("efgh"))
    subject.learn(OTHER, tokens("efxyz"))
    assert drafts(subject, *rows) == ["cd", "xy"]
    # Together with these it would be too much, by itself it is read though it is longer.
    subject.learn(OTHER, tokens("ef12"))
    subject.learn(OTHER, tokens("ef34567890"))
    assert drafts(subject, *rows) == ["cd", "12"]
    assert drafts(subject, *rows) == ["cd", "34"]


def test_other_prompts_responses_are_not_drafted_from() -> None:
    subject = drafter()
    subject.learn(OTHER, tokens("abcd"))
    assert drafts(subject, row("-ab")) == [""]
    assert drafts(subject, row("-ab", prompt=OTHER)) == ["cd"]


def test_the_longer_match_of_own_text_and_siblings_wins() -> None:
    subject = drafter(draft_tokens=3)
    subject.learn(PROMPT, tokens("wabXYZ"))
    assert drafts(subject, row("uabcdefgwab")) == ["XYZ"]
    assert drafts(subject, row("uabcdefguab")) == ["cde"]


def test_responses_are_followed_as_they_grow() -> None:
    subject, text = drafter(), "abcdab"
    assert drafts(subject, row("abcdab")) == ["cd"]
    for more in "cdx":
        text += more
        drafts(subject, row(text))
    assert drafts(subject, row(text + "ab")) == ["cd"]
    assert drafts(subject, row(text + "abcdx")) == ["ab"]


def test_several_rows_are_followed_one_more_with_each_call() -> None:
    subject, rows = drafter(), [row("abcdab", "one"), row("efghef", "two")]
    assert drafts(subject, *rows) == ["cd", ""]
    assert drafts(subject, *rows) == ["cd", "gh"]
    # Rows change places; a row that is gone is forgotten.
    assert drafts(subject, *reversed(rows)) == ["gh", "cd"]
    assert drafts(subject, rows[1]) == ["gh"]
    assert drafts(subject, rows[1], rows[0]) == ["gh", "cd"]


def test_a_row_whose_prompt_is_computed_is_not_forgotten() -> None:
    subject, rows = drafter(), [row("abcdab", "one"), row("efghef", "two")]
    drafts(subject, *rows)
    assert drafts(subject, row("abcdab", "one", room=0), rows[1]) == ["", "gh"]
    assert drafts(subject, *rows) == ["cd", "gh"]


def test_after_a_rest_everything_is_read_anew() -> None:
    subject = drafter()
    subject.learn(PROMPT, tokens("xyz"))
    assert drafts(subject, row("abcdab")) == ["cd"]
    subject.rest()
    assert drafts(subject, row("-xy")) == ["z"]
    assert drafts(subject, row("-xy")) == ["z"]


def test_the_oldest_prompts_go_first() -> None:
    subject = drafter(kept_tokens=11)
    subject.learn(PROMPT, tokens("abcd"))
    subject.learn(OTHER, tokens("abxy"))
    assert subject.held_tokens == 10, "each with its prompt, of one token"
    subject.learn(OTHER, tokens("qrst"))
    assert subject.held_tokens == 9
    assert drafts(subject, row("-ab", "one"), row("-ab", "two", OTHER)) == ["", "xy"]
    subject.learn(b"third", tokens("0123456789"))
    assert subject.held_tokens == 11
    subject.learn(b"fourth", tokens("0123456789a"))
    assert subject.held_tokens == 0


def test_nothing_kept_is_nothing_drafted_from() -> None:
    subject = drafter(kept_tokens=0)
    subject.learn(PROMPT, tokens("abcd"))
    assert drafts(subject, row("-ab", "one")) == [""]
    assert drafts(subject, row("abcdab", "two")) == ["cd"]


def test_drafts_grow_short_where_they_are_not_kept() -> None:
    subject = drafter(draft_tokens=8)
    lengths = []
    for _ in range(60):
        [draft] = drafts(subject, row("abcdefghijklab"))
        lengths.append(len(draft))
        subject.sampled("r", 1)
    assert lengths[0] == 8
    assert sum(lengths[-16:]) <= 1
    assert (subject.drafted_tokens, subject.accepted_tokens) == (sum(lengths), 0)


def test_what_was_drafted_is_counted_once_it_is_checked() -> None:
    subject = drafter()
    drafts(subject, row("abcdab"))
    subject.sampled("r", 0)  # a step that computed its prompt
    subject.sampled("other", 3)
    assert (subject.drafted_tokens, subject.accepted_tokens) == (0, 0)
    drafts(subject, row("abcdab"))
    subject.sampled("r", 2)
    subject.sampled("r", 2)
    assert (subject.drafted_tokens, subject.accepted_tokens) == (2, 1)
