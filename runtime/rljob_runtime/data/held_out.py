"""Whether the prompts of an evaluation are held out from training. Pure."""

from collections.abc import Iterable

from rljob_runtime.data.errors import DataError
from rljob_runtime.data.prompts import PlacedText


def check_held_out(held_out: Iterable[PlacedText], trained: Iterable[PlacedText]) -> None:
    """Raises `DataError` where prompts are among those that are trained: white space at their ends aside,
    the same text."""
    places: dict[str, str] = {}
    for prompt in held_out:
        places.setdefault(prompt.text.strip(), prompt.where)
    found: dict[str, str] = {}
    for prompt in trained:
        text = prompt.text.strip()
        if text in places:
            found.setdefault(text, prompt.where)
    if found:
        text, where = next(iter(found.items()))
        count = "1 of its prompts is" if len(found) == 1 else f"{len(found):,} of its prompts are"
        raise DataError(
            f"{count} among those that are trained (training.data), of {len(places):,} different ones; the "
            f"first: {places[text]} is also {where}. Evaluate on others: take them out of one of the two"
        )
