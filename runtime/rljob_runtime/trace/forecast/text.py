"""A comparison of policies, a timeline and a list of pool sizes as text for a terminal. Pure."""

from collections.abc import Callable, Sequence
from itertools import islice

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.simulate.cluster import Line
from rljob_runtime.simulate.compare import BestSizes, Compared, Spread
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.site import Sizes

_WIDTH = 64
"""Cells of a timeline."""
_SHADES = " ░▒▓█"
"""An engine that has nothing to do, and four quarters of its limit."""
_MOST_ENGINES = 32
"""Lines of a timeline."""

SECONDS_OF = (
    "Seconds of responses and groups count from when the bound admits the group (with bound 0 the begin of "
    "its step), however late a policy begins it."
)
"""What the columns of seconds say, under the comparison."""

_COLUMNS: tuple[tuple[str, Callable[[Outcome], float], str], ...] = (
    ("samples/s", lambda each: each.samples_per_second, ".3g"),
    ("tokens/s", lambda each: each.tokens_per_second, ",.0f"),
    ("engines idle %", lambda each: 100 * each.idle, ".1f"),
    ("response p50 s", lambda each: each.response.p50, ".3g"),
    ("p99 s", lambda each: each.response.p99, ".3g"),
    ("group p99 s", lambda each: each.group.p99, ".3g"),
    ("moves", lambda each: each.moves, ".0f"),
    ("restarts", lambda each: each.restarts, ".0f"),
    ("tokens dropped %", lambda each: 100 * each.wasted_tokens / max(1, each.tokens), ".1f"),
    ("pushed out", lambda each: each.pushed_out, ".0f"),
)


def counted(count: int, what: str) -> str:
    """A number of things: "1 step", "1,200 steps"."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def decode_step(cost: StepCost) -> str:
    """What a decode step costs."""
    return (
        f"of {1000 * cost.fixed:.3g} ms + {1e6 * cost.per_request:.3g} µs a request + "
        f"{1e9 * cost.per_kv_token:.3g} ns a KV token"
    )


def comparison(found: Sequence[Compared], own: str) -> str:
    """A line for each policy, the job's own one with a star; mean and standard deviation over the seeds."""
    return table(comparison_rows(found, own))


def comparison_rows(found: Sequence[Compared], own: str) -> list[list[str]]:
    """The same as cells, the heads first."""
    rows = [["policy", *(name for name, _, _ in _COLUMNS)]]
    for each in found:
        name = f"{each.policy} *" if each.policy == own else each.policy
        cells = [_cell(each.spread(figure), form) for _, figure, form in _COLUMNS]
        rows.append([name, *cells])
    return rows


def sizes(found: BestSizes, accelerators: int, own: Sizes) -> str:
    """The best pool sizes, a line for each, the job's own ones with a star."""
    rows = [["trainer", "fast", "heavy", "samples/s", "engines idle %"]]
    rows += [
        [
            f"{each.sizes.trainer}{' *' * (each.sizes == own)}", str(each.sizes.fast), str(each.sizes.heavy),
            f"{each.samples_per_second:.3g}", f"{100 * each.idle:.1f}",
        ]
        for each in found.fastest
    ]  # fmt: skip
    star = "\n* the job's" * any(each.sizes == own for each in found.fastest)
    return (
        f"Workers of each pool with {accelerators} accelerators, the fastest first, of {found.tried} sizes "
        f"that were tried:\n{table(rows)}{star}"
    )


def timeline(outcome: Outcome, pools: Sequence[str], limits: Sequence[int]) -> str:
    """What each engine ran over time: a line of cells, each the darker the more requests."""
    lines = [
        f"{name:>10} │{_cells(line, limit, outcome.wall)}│"
        for name, line, limit in islice(
            zip(engine_names(pools), outcome.lines, limits, strict=True), _MOST_ENGINES
        )
    ]
    if len(outcome.lines) > _MOST_ENGINES:
        lines.append(f"{'':>10}  and {len(outcome.lines) - _MOST_ENGINES} engines more")
    scale = f"{'0 s':<{_WIDTH // 2}}{f'{outcome.wall:,.0f} s':>{_WIDTH - _WIDTH // 2}}"
    return "\n".join([*lines, f"{'':>10}  {scale}"])


def engine_names(pools: Sequence[str]) -> list[str]:
    """Names of engines of these pools: "fast-0", "fast-1", "heavy-0"."""
    numbers = dict.fromkeys(pools, 0)
    names = []
    for pool in pools:
        names.append(f"{pool}-{numbers[pool]}")
        numbers[pool] += 1
    return names


def _cells(line: Line, limit: int, end: float) -> str:
    """The mean share of the limit in each cell, as a shade."""
    shares = [mean / limit for mean in means(line, end, end, _WIDTH)]
    # An engine that does anything is never shown as one with nothing to do.
    return "".join(_SHADES[0 if share < 1e-6 else 1 + min(3, int(share * 4))] for share in shares)


def means(line: Line, end: float, span: float, parts: int) -> list[float]:
    """Mean number of requests that run in each of the equal parts of `span` seconds; none after `end`."""
    width, sums = span / parts, [0.0] * parts
    for place, (begin, running) in enumerate(line):
        until = line[place + 1][0] if place + 1 < len(line) else end
        part = int(begin / width) if width else parts
        while running and begin < until and part < parts:
            edge = min(until, (part + 1) * width)
            sums[part] += running * (edge - begin)
            begin, part = edge, part + 1
    return [total / width if width else 0.0 for total in sums]


def _cell(spread: Spread, form: str) -> str:
    mean = format(spread.mean, form)
    return mean if spread.deviation == 0 else f"{mean} ± {spread.deviation:.2g}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows with their columns aligned, all but the first to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
