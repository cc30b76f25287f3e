"""Panels of a figure that are tables on a page: numbers, differences in colour, and how a model is split (figure 2)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from excise.evals.figure import Heat, Split, Table
from excise.labels import JOINT, RETAIN
from excise.report.html import join
from excise.report.numbers import decimals_of, number

N_PARTS = 6
"""Colours for parts of a model."""
WITH_INTERVAL = re.compile(r"[-−+]?[\d.,]+ \[[^\]]+\]")
"""A number that no line may break."""


def html_table(head: Sequence[str], rows: Iterable[str], name: str, kind: str = "plain") -> str:
    """A table that scrolls in a box of its own; its rows are given as HTML."""
    heads = "".join(f'<th scope="col">{escape(one)}</th>' if one else "<td></td>" for one in head)
    return f"""<div class="scroll" role="group" aria-label="{escape(name)}" tabindex="0">
<table class="{kind}">
<thead><tr>{heads}</tr></thead>
<tbody>
{join(rows)}</tbody>
</table>
</div>
"""


def html_row(name: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def heat_table(panel: Heat) -> str:
    """A table whose cells are coloured by their numbers."""
    found = [value for row in panel.values for value in row if value is not None]
    scale, decimals = heat_scale(found), decimals_of(found)
    rows = (
        f'<tr><th scope="row">{escape(name)}</th>{"".join(_heat_cell(value, scale, decimals) for value in values)}</tr>'
        for name, values in zip(panel.rows, panel.values, strict=True)
    )
    corner = f"{panel.row_label}\u00a0↓ {panel.column_label}\u00a0→"
    key = "Blue is above 0, orange below; paler is closer to 0." if min(found, default=0) < 0 else ""
    key = "Paler is closer to the smallest number." if scale[0] else key
    return html_table([corner, *panel.columns], rows, panel.title, "heat") + (key and f'<p class="quiet">{key}</p>\n')


def heat_scale(values: Sequence[float]) -> tuple[float, float]:
    """The number without colour, and how far from it colour is full, one above and another below: from 0 to the largest or,
    where numbers are closer to one another than to 0, from just below the smallest of them."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if 0 < (span := high - low) < min(abs(low), abs(high)):
        return low - span / 9, span * 10 / 9
    return 0.0, max(abs(low), abs(high)) or 1.0


def _heat_cell(value: float | None, scale: tuple[float, float], decimals: int | None) -> str:
    if value is None:
        return '<td class="none">–<span class="hidden"> not measured</span></td>'
    share = (value - scale[0]) / scale[1]
    side = "below" if share < 0 else "above"
    return f'<td class="{side}" style="--v: {abs(share):.3f}">{number(value, decimals)}</td>'


def plain_table(panel: Table) -> str:
    def cell(text: str) -> str:
        return escape(text.replace(" ", "\u00a0") if WITH_INTERVAL.fullmatch(text) else text)

    columns = zip(*panel.rows, strict=True)
    words = [f"c{i}" for i, column in enumerate(columns, 1) if not any(map(_is_number, column))]
    rows = (html_row(cell(row[0]), map(cell, row[1:])) for row in cells_of(panel))
    return html_table(panel.header, rows, panel.title or "Table", " ".join(["plain", *words]))


def cells_of(panel: Table) -> list[list[str]]:
    """What stands in a table: measured numbers with as many decimals in all of a column, settings and counts as they are."""

    def column(cells: Sequence[str | float]) -> list[str]:
        measured = [cell for cell in cells if isinstance(cell, float)]
        settings = all(float(f"{value:.3g}") == value for value in measured)
        decimals = None if settings else decimals_of(measured)
        return [
            cell if isinstance(cell, str) else number(cell, decimals if isinstance(cell, float) else None)
            for cell in cells
        ]

    columns = [column(cells) for cells in zip(*panel.rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def _is_number(cell: str | float) -> bool:
    return not isinstance(cell, str) or bool(re.match(r"[-−+]?[\d.]+(\s|%|$)", cell))


def kinds_of(parts: Iterable[str]) -> dict[str, int]:
    """A number for each part of a model that gives its colour: retain, joint, then the modules."""
    names = list(parts)
    modules = [name for name in names if name not in (RETAIN, JOINT)]
    return {name: (RETAIN, JOINT, *modules).index(name) % N_PARTS for name in names}


def split_table(panel: Split) -> str:
    """For each matrix a bar, cut where its parts meet."""
    parts = {part: f"p{kind}" for part, kind in kinds_of(panel.parts).items()}
    rows = (
        html_row(
            escape(matrix), (_cut(panel, parts, i), *(_size(panel.parts[part][i]) for part in parts), escape(unit))
        )
        for i, (matrix, unit) in enumerate(zip(panel.matrices, panel.unit, strict=True))
    )
    head = "".join(f'<li><span class="part {kind}"></span>{escape(part)}</li>' for part, kind in parts.items())
    table = html_table(["Matrix", "How it is split", *parts, "counted in"], rows, panel.title, "split")
    return f'<ul class="parts">{head}</ul>\n{table}'


def _cut(panel: Split, parts: Mapping[str, str], i: int) -> str:
    pieces = [(kind, panel.parts[part][i]) for part, kind in parts.items() if panel.parts[part][i]]
    inside = "".join(f'<span class="part {kind}" style="flex-grow: {size}"></span>' for kind, size in pieces)
    return f'<div class="cut" aria-hidden="true">{inside}</div>'


def _size(n: int) -> str:
    return f"{n:,}" if n else "–"
