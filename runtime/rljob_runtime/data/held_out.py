"""Whether the prompts of evaluations are held out from training: by what their rows ask, with whatever system
prompt before it. Pure."""

from collections.abc import Iterable, Sequence

from rljob_runtime.data.usable import PlacedText


def trained_prompts(
    held_out: Sequence[Iterable[PlacedText]], trained: Iterable[PlacedText]
) -> dict[int, str]:
    """What is wrong with each set of `held_out` that has a prompt which is trained, by its place. The prompts
    that are trained are gone through once."""
    sets = [_Places(prompts) for prompts in held_out]
    found: list[dict[str, str]] = [{} for _ in sets]
    for prompt in trained:
        for there, also in zip(sets, found, strict=True):
            # The system prompt of the one may stand in the rows of the other.
            text = there.texts.get(prompt.text) or there.texts.get(prompt.whole)
            if text is not None:
                also.setdefault(text, prompt.where)
    return {
        index: _in_words(there.places, also)
        for index, (there, also) in enumerate(zip(sets, found, strict=True))
        if also
    }


class _Places:
    """The different prompts of a set."""

    def __init__(self, prompts: Iterable[PlacedText]) -> None:
        self.places: dict[str, str] = {}
        """Where each stands first, by its text."""
        self.texts: dict[str, str] = {}
        """The text of each, by that and by the whole of it."""
        for prompt in prompts:
            self.places.setdefault(prompt.text, prompt.where)
            self.texts[prompt.text] = prompt.text
            self.texts.setdefault(prompt.whole, prompt.text)


def _in_words(places: dict[str, str], also: dict[str, str]) -> str:
    text, where = next(iter(also.items()))
    count = "1 of its prompts is" if len(also) == 1 else f"{len(also):,} of its prompts are"
    return (
        f"{count} among those that are trained (training.data), of {len(places):,} different ones; the "
        f"first: {places[text]} is also {where}. Evaluate on others: take them out of one of the two"
    )
