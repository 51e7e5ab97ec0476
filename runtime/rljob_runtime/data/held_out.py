"""Whether the prompts of evaluations are held out from training. Pure."""

from collections.abc import Iterable, Sequence

from rljob_runtime.data.usable import PlacedText


def trained_prompts(
    held_out: Sequence[Iterable[PlacedText]], trained: Iterable[PlacedText]
) -> dict[int, str]:
    """What is wrong with each set of `held_out` that has a prompt which is trained, by its place: white space
    at their ends aside, the same text. The prompts that are trained are gone through once."""
    places = [_places(prompts) for prompts in held_out]
    found: list[dict[str, str]] = [{} for _ in places]
    for prompt in trained:
        text = prompt.text.strip()
        for there, also in zip(places, found, strict=True):
            if text in there:
                also.setdefault(text, prompt.where)
    return {
        index: _in_words(there, also)
        for index, (there, also) in enumerate(zip(places, found, strict=True))
        if also
    }


def _places(prompts: Iterable[PlacedText]) -> dict[str, str]:
    """Where each text stands first."""
    places: dict[str, str] = {}
    for prompt in prompts:
        places.setdefault(prompt.text.strip(), prompt.where)
    return places


def _in_words(places: dict[str, str], also: dict[str, str]) -> str:
    text, where = next(iter(also.items()))
    count = "1 of its prompts is" if len(also) == 1 else f"{len(also):,} of its prompts are"
    return (
        f"{count} among those that are trained (training.data), of {len(places):,} different ones; the "
        f"first: {places[text]} is also {where}. Evaluate on others: take them out of one of the two"
    )
