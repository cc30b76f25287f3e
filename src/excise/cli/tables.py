"""Tables and samples for the terminal."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from excise.evals import tables
from excise.files import told_apart

if TYPE_CHECKING:
    from excise.evals.figure import Table as Numbers
    from excise.evals.results import Results
    from excise.evals.run import SeedSpreads

BETWEEN = 3
"""Characters between two columns."""
SHORTEST = 10
"""Characters of the first column below which its words are not cut up for the sake of the others."""
WORD = re.compile(r"\[.*?\]|\S+")
"""What is never broken: an interval or a word."""


@dataclass(frozen=True)
class FittedTable:
    """A table whose first column is words and whose others are numbers.

    Where the terminal is too narrow, intervals go below their numbers, and then cells are wrapped between words. An empty
    line follows.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        room = options.max_width - BETWEEN * (len(self.columns) - 1)
        cells = list(zip(self.columns, *self.rows, strict=True))
        if sum(map(longest_line, cells)) > room:
            cells = [tuple(cell.replace(" [", "\n[") for cell in column) for column in cells]
        made = plain_table()
        for i, (column, width) in enumerate(zip(cells, widths(cells, room), strict=True)):
            made.add_column(column[0], justify="right" if i else "left", overflow="fold", width=width)
        for row in zip(*(column[1:] for column in cells), strict=True):
            made.add_row(*row)
        yield Text(self.title, style="italic")
        yield made
        yield ""


def plain_table(title: str | None = None) -> Table:
    """An empty table without lines between its columns."""
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Characters for each column: the longest of its words and, from the left on as far as there is room, whole cells.

    Where even the words are too long, those of the first column are cut up.
    """
    least = [max(len(word) for cell in column for word in WORD.findall(cell) or ("",)) for column in columns]
    least[0] = max(min(least[0], SHORTEST), least[0] + min(0, room - sum(least)))
    spare = room - sum(least)
    found = []
    for column, width in zip(columns, least, strict=True):
        more = min(longest_line(column) - width, max(0, spare))
        found.append(width + more)
        spare -= more
    return found


def longest_line(cells: Sequence[str]) -> int:
    return max(len(line) for cell in cells for line in cell.splitlines() or ("",))


def shown(name: str, found: Any) -> RenderableType:
    """A measure as it stands in results.json."""
    if name == "samples":
        return samples(found)
    return Group(*map(fitted, tables.TABLES[name](found)))


def fitted(table: "Numbers") -> FittedTable:
    return FittedTable(table.title, table.header, [list(map(str, row)) for row in table.rows])


def comparison(runs: Mapping[Path, "Results"], methods: Mapping[Path, str]) -> RenderableType:
    """The losses of several runs side by side, and why some of them cannot be compared."""
    names = dict(zip(runs, told_apart(list(runs)), strict=True))
    labels = {run: name if name == methods[run] else f"{name} ({methods[run]})" for run, name in names.items()}
    table = fitted(tables.comparison({labels[run]: results.measures["losses"] for run, results in runs.items()}))
    for what, digest in (("tokenizers", "tokenizer_sha256"), ("test documents", "evaluated_on_sha256")):
        groups: dict[str, list[str]] = {}
        for run, results in runs.items():
            groups.setdefault(getattr(results.provenance, digest), []).append(names[run])
        if len(groups) > 1:
            alike = "; ".join(", ".join(group) for group in groups.values())
            return Group(table, f"Not to be compared, because of different {what}: {alike}\n")
    return table


def samples(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    width = max(len(name) for name in found[0]["written"])
    lines = [
        Text.assemble((f"{name:<{width}} ", "bold"), (sample["prompt"], "cyan"), written)
        for sample in found
        for name, written in sample["written"].items()
    ]
    return Group(*lines)


def spread_table(spreads: "SeedSpreads") -> RenderableType:
    rows = [
        [name, *(f"{of.mean:.3f} ± {of.standard_deviation:.3f}" for of in stages.values())]
        for name, stages in spreads.sets.items()
    ]
    title = f"Mean and standard deviation over {len(spreads.runs)} seeds: {', '.join(spreads.runs)}"
    return FittedTable(title, ("set", "before ablation", "ablated", "calibrated"), rows)
