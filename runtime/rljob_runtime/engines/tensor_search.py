"""Finds by tensors where the last tokens of texts were said before, and drafts what followed there.

Pure. Guarantees: no value leaves the device that the tensors are on, so that nothing there is waited for; the
longest run of tokens that agree wins, of equally long ones the last place, the text's own after all others.
"""

import torch

END = -1
"""Stands where a text ends, or where there is none; no token is negative."""
COMPARED = 16
"""Tokens that are compared, where not more must agree: a longer match would not say more."""
_NOTHING = -2
"""Stands before the first token of a text whose end is looked for, and agrees with nothing."""


def drafts(
    finished: torch.Tensor, own: torch.Tensor, lengths: torch.Tensor, minimum: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What may come next in each text, and how many of these tokens stood after a match.

    `own`, int32 of shape (texts, any), has a text in the first columns of each row: so many as `lengths`
    says, int64 of shape (texts,), 1 at least. What stands beyond is not looked at. `finished`, int32 of shape
    (texts, any), has what is looked through besides: token lists, `END` behind each, and to the row's end. A
    match is of `minimum` tokens at least; those of more than `COMPARED`, and than `minimum`, count alike.

    Drafts are int64 of shape (texts, count). One ends where the list does that its match is in; after a match
    in the text itself it goes on as the text does since. Beyond its end, and where there is no match, it
    repeats the text's last token. The second tensor, int64 of shape (texts,), counts what stands before that.
    """
    compared = max(COMPARED, minimum)
    texts, first = _joined(finished, own, compared)
    ends, width = (lengths + first)[:, None], texts.shape[1]
    agreed = _agreed(texts, first, ends, compared)
    columns = torch.arange(compared, width, device=texts.device)
    follows = texts[:, compared:]
    found = (agreed >= minimum) & (follows != END) & (columns < ends)
    best = torch.where(found, agreed * width + columns, 0).amax(1, keepdim=True)
    start, known = best % width, best > 0

    steps = torch.arange(count, device=texts.device)
    since = (ends - start).clamp(min=1)
    places = torch.where(start < first, start + steps, start + steps % since).clamp(max=width - 1)
    guessed = texts.gather(1, places)
    drafted = (guessed != END).cumprod(1).bool() & known
    return torch.where(drafted, guessed, texts.gather(1, ends - 1)).long(), drafted.sum(1)


def _joined(finished: torch.Tensor, own: torch.Tensor, compared: int) -> tuple[torch.Tensor, int]:
    """Both beside one another, with room before the first token; and the column where own texts begin."""
    rows, before = finished.shape
    room, between = own.new_full((rows, compared), END), own.new_full((rows, 1), END)
    return torch.cat([room, finished, between, own], 1), compared + before + 1


def _agreed(texts: torch.Tensor, first: int, ends: torch.Tensor, compared: int) -> torch.Tensor:
    """How many tokens before each column, from `compared` on, are those before the text's end: int64."""
    last = ends + torch.arange(-compared, 0, device=texts.device)
    tail = torch.where(last < first, _NOTHING, texts.gather(1, last))
    windows = texts.unfold(1, compared, 1)[:, :-1]
    # Of the tokens that differ, the one nearest to the column has the highest number.
    nearness = torch.arange(1, compared + 1, dtype=torch.int8, device=texts.device)
    return compared - ((windows != tail[:, None]) * nearness).amax(2).long()
