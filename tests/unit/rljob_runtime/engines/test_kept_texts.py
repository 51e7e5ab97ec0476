"""Which finished responses are kept, and which of them are looked through."""

import numpy as np

from rljob_runtime.engines.kept_texts import KeptTexts


def tokens(text: str) -> bytes:
    return np.array([ord(letter) for letter in text], np.int32).tobytes()


def kept(*texts: tuple[str, str], most: int = 1000) -> KeptTexts:
    made = KeptTexts(most)
    for prompt, response in texts:
        made.learn(tokens(prompt), tokens(response))
    return made


def of(texts: KeptTexts, prompt: str, most: int = 100) -> str:
    """With a dot for each end."""
    return "".join("." if token < 0 else chr(token) for token in texts.of(tokens(prompt), most))


def test_the_newest_responses_to_a_prompt_are_looked_through_whole() -> None:
    texts = kept(("p", "one"), ("q", "other"), ("p", "two"), ("p", "three"))
    assert of(texts, "p") == "one.two.three."
    assert of(texts, "p", 14) == "one.two.three."
    assert of(texts, "p", 13) == "two.three."
    assert of(texts, "p", 5) == ""
    assert of(texts, "q") == "other."
    assert of(texts, "never seen") == ""


def test_what_exceeds_the_room_goes_by_prompt_the_oldest_first() -> None:
    """A prompt counts once."""
    texts = kept(("pp", "one"), ("q", "other"), ("pp", "two"), most=14)
    assert (of(texts, "pp"), of(texts, "q")) == ("one.two.", "other.")
    texts.learn(tokens("r"), tokens(""))
    assert (of(texts, "pp"), of(texts, "q"), of(texts, "r")) == ("", "other.", ".")
    assert of(kept(("p", "one"), most=0), "p") == ""
