"""Small pieces of the report's markup; pure, every text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape


def figure(title: str, chart: str, note: str = "") -> str:
    """A chart with its caption; nothing where there is no chart."""
    if not chart:
        return ""
    more = f" <span>{escape(note)}</span>" if note else ""
    return f"<figure><figcaption>{escape(title)}{more}</figcaption>{chart}</figure>"


def grid(figures: Iterable[str]) -> str:
    """Figures side by side."""
    return f'<div class="grid">{"".join(figures)}</div>'


def tile(value: str, label: str, style: str = "") -> str:
    """A number that answers a question."""
    return f'<div class="tile"><b class="{style}">{escape(value)}</b><small>{escape(label)}</small></div>'


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Iterable[int] = (),
    sentences: Iterable[int] = (),
) -> str:
    """A table. Cells are markup, to be escaped by the caller; columns `numbers` are aligned to the right,
    those of `sentences` are broken into lines where the page is narrow."""
    styles = dict.fromkeys(numbers, "n") | dict.fromkeys(sentences, "t")

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{f' class={styles[index]}' if index in styles else ''}>{value}</{tag}>"
            for index, value in enumerate(values)
        )

    head = cells("th", [escape(name) for name in heads])
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    if not body:
        return ""
    return (
        f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def bar(parts: Iterable[tuple[str, float, str]]) -> str:
    """A bar of (name, share of its width, colour class: a number, or "wait")."""
    pieces = "".join(
        f'<i class="{"wait" if colour == "wait" else f"b{colour}"}" style="width:{share * 100:.2f}%" '
        f'title="{escape(name)} {percent(share)}"></i>'
        for name, share, colour in parts
        if share > 0
    )
    return f'<div class="bar">{pieces}</div>'


def legend(parts: Iterable[tuple[str, str]]) -> str:
    """What the colours of (name, colour class) mean."""
    names = "".join(
        f'<span><i class="{"wait" if colour == "wait" else f"b{colour}"}"></i>{escape(name)}</span>'
        for name, colour in parts
    )
    return f'<div class="legend">{names}</div>'


def percent(share: float) -> str:
    """A share, 0 to 1, as 61 % or 4.2 %."""
    value = share * 100
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def seconds(value: float) -> str:
    """A duration with a unit that fits: 35 µs, 4.2 ms, 1.3 s, 2 min 05 s, 3 h 10 min."""
    if value >= 3600:
        return f"{value // 3600:.0f} h {value % 3600 // 60:02.0f} min"
    if value >= 120:
        return f"{value // 60:.0f} min {value % 60:02.0f} s"
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def number(value: float | None) -> str:
    """A number in about three digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
