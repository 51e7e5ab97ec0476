"""Means of what rewards have by name. Pure."""

from collections.abc import Iterable, Mapping


def means_by_name(values: Iterable[Mapping[str, float | None]]) -> dict[str, float]:
    """Of each name the mean over the responses that have a value, in the order of names; none of a name that
    no response has a value of."""
    found: dict[str, list[float]] = {}
    for each in values:
        for name, value in each.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: sum(found[name]) / len(found[name]) for name in sorted(found)}
