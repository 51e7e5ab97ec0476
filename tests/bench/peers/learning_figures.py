"""From learning curves to figures and a table. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tests.bench.figures import Figure
from tests.bench.peers import ours
from tests.bench.peers.curves import Point, Reached, distance, reached, smoothed

LEVELS = (0.25, 0.5, 0.9)


@dataclass(frozen=True)
class Run:
    """A contender with a seed."""

    name: str
    seed: int = 0

    def __str__(self) -> str:
        return self.name + (f" seed {self.seed}" if self.seed else "")


Curves = Mapping[Run, Sequence[Point]]


def figures(curves: Curves, samples: int, gpus: int) -> list[Figure]:
    """Of what is there so far; the baseline of ours is verl's, where that is there. `samples`: responses that
    a step trains."""
    on = f"{gpus} GPU{'' if gpus == 1 else 's'}" if gpus else "CPU"
    return [*_of_each(curves, samples, on), *_distances(curves, on)]


def noise(curves: Curves, name: str) -> float | None:
    """The largest distance between two seeds of a contender; None with one alone."""
    seeds = [points for run, points in curves.items() if run.name == name]
    found = [distance(one, other) for one, other in combinations(seeds, 2)]
    return max((each for each in found if each is not None), default=None)


def _of_each(curves: Curves, samples: int, on: str) -> Iterator[Figure]:
    peer = next((points for run, points in curves.items() if not _is_ours(run)), None)
    for run, points in curves.items():
        other = peer if _is_ours(run) else None
        for level in LEVELS:
            there, theirs = reached(points, level), reached(other, level) if other else None
            yield from _to(f"{run}, {on}", level, there, theirs, samples)
        # Of a peer that had less time it would be another step's.
        last = smoothed(other)[-1] if other and len(other) == len(points) else None
        yield Figure(f"{run}, {on}: reward at the end", smoothed(points)[-1], "reward", last)


def _to(
    who: str, level: float, there: Reached | None, theirs: Reached | None, samples: int
) -> Iterator[Figure]:
    """What it took to a level of reward; nothing where it was not reached."""
    if there is None:
        return
    at, since_first, since_start = (
        (theirs.steps * samples, theirs.seconds, theirs.from_start) if theirs else (None, None, None)
    )
    equal, first = ("1 x: equal", "< 1 x: ours first") if theirs else (None, None)
    yield Figure(f"{who}: samples to reward {level}", there.steps * samples, "samples", at, equal)
    name = f"{who}: from the end of the first step to reward {level}"
    yield Figure(name, there.seconds, "s", since_first, first)
    name = f"{who}: from the start of the command to reward {level}"
    yield Figure(name, there.from_start, "s", since_start, first)


def _distances(curves: Curves, on: str) -> Iterator[Figure]:
    for name in dict.fromkeys(run.name for run in curves if _is_ours(run)):
        found = noise(curves, name)
        if found is not None:
            yield Figure(f"{name}, {on}: largest distance between seeds", found, "reward")
    for run, points in curves.items():
        for peer, theirs in curves.items():
            apart = distance(points, theirs)
            if _is_ours(run) and not _is_ours(peer) and apart is not None:
                baseline = noise(curves, run.name)
                yield Figure(
                    f"{run} beside {peer}, {on}: largest distance after as many samples", apart, "reward",
                    baseline, "about 1 x, which is noise" if baseline else None,
                )  # fmt: skip


def table(curves: Curves, samples: int) -> str:
    """What it took each run to each level of reward."""
    columns = [
        f"{what} to {level}" for level in LEVELS for what in ("samples", "s after a step", "s from start")
    ]
    rows = [["", *columns, "steps", "reward at the end"]]
    for run, points in curves.items():
        cells = [cell for level in LEVELS for cell in _cells(reached(points, level), samples)]
        rows.append([str(run), *cells, str(len(points)), f"{smoothed(points)[-1]:.3f}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def _cells(there: Reached | None, samples: int) -> list[str]:
    if there is None:
        return ["-"] * 3
    return [f"{there.steps * samples:,}", f"{there.seconds:.1f}", f"{there.from_start:.1f}"]


def _is_ours(run: Run) -> bool:
    return ours.named(run.name) is not None
