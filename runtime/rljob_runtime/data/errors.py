"""Errors about data: one line that says what is wrong, where, and what to do."""

from difflib import get_close_matches


class DataError(ValueError):
    """The prompts or the tokenizer cannot be used."""


def missing_name(kind: str, name: str, available: list[str]) -> str:
    """`no field "promt". Did you mean prompt? It has: prompt, answer`; at most twelve names are listed."""
    near = get_close_matches(name, available, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    more = ", …" if len(available) > 12 else ""
    listed = ", ".join(available[:12]) + more if available else "nothing"
    return f'no {kind} "{name}".{hint} It has: {listed}'


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of an exception without line breaks."""
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
