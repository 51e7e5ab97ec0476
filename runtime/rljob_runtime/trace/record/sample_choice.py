"""Which responses of a step are kept to be read. Pure.

The best, the worst and the longest come first, for they are what is looked for; the rest is drawn at random,
by whole groups as far as they fit, since a response is judged by its siblings. One group may be of a prompt
that is followed over the run, so that the same prompt can be read over time.
"""

import random
from collections.abc import Collection, Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A response of a step."""

    uid: int
    """Its group."""
    row: int
    """The row of the data that its prompt stands in."""
    place: int
    """Its place in the group."""
    reward: float | None
    """None where there is none."""
    length: int
    """Tokens."""


def choose(
    candidates: Sequence[Candidate], count: int, rng: random.Random, followed: Collection[int] = ()
) -> list[Candidate]:
    """Up to `count` of the responses, in order of groups and places; all of them where there are no more.

    First the best, the worst and the longest, in this order. Then whole groups that fit into what is left:
    those of these three, one of a row that is `followed`, others at random. What is left then is filled by
    single responses, of groups that have one already before others. Among equals `rng` draws."""
    if count >= len(candidates):
        return sorted(candidates, key=_where)
    drawn = sorted(candidates, key=_where)
    rng.shuffle(drawn)
    chosen = dict.fromkeys(_extremes(drawn)[:count])
    groups: dict[int, list[Candidate]] = {}
    for each in drawn:
        groups.setdefault(each.uid, []).append(each)
    order = _order(list(chosen), groups, followed)
    for uid in order:
        rest = [each for each in groups[uid] if each not in chosen]
        if len(chosen) + len(rest) <= count:
            chosen.update(dict.fromkeys(rest))
    begun = {each.uid for each in chosen}
    # A stable sort: groups that have a response among the chosen first, otherwise in the order from above.
    singles = [each for uid in sorted(order, key=lambda uid: uid not in begun) for each in groups[uid]]
    for each in singles:
        if len(chosen) == count:
            break
        chosen[each] = None
    return sorted(chosen, key=_where)


def _extremes(drawn: Sequence[Candidate]) -> list[Candidate]:
    """The best, the worst and the longest; fewer where one response is several of them."""
    rewarded = [each for each in drawn if each.reward is not None]
    found = [max(drawn, key=lambda each: each.length)]
    if rewarded:
        best = max(rewarded, key=lambda each: each.reward or 0.0)
        worst = min(rewarded, key=lambda each: each.reward or 0.0)
        found = [best, worst, *found]
    return list(dict.fromkeys(found))


def _order(
    chosen: Sequence[Candidate], groups: dict[int, list[Candidate]], followed: Collection[int]
) -> list[int]:
    """The groups in the order in which they are completed."""
    first = [each.uid for each in chosen]
    # One only: with a small set of followed prompts in every step nothing else would ever be drawn.
    again = [uid for uid, members in groups.items() if members[0].row in followed][:1]
    return list(dict.fromkeys([*first, *again, *groups]))


def _where(each: Candidate) -> tuple[int, int]:
    return each.uid, each.place
