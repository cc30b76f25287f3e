"""Tables and samples for the terminal."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from excise.evals.tables import TABLES

if TYPE_CHECKING:
    from excise.evals.run import SeedSpreads


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first column is words and whose others are numbers."""
    made = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def shown(name: str, found: Any) -> RenderableType:
    """A measure as it stands in results.json."""
    if name == "samples":
        return samples(found)
    return Group(*(table(of.title, of.header, [list(map(str, row)) for row in of.rows]) for of in TABLES[name](found)))


def samples(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    width = max(len(name) for name in found[0]["written"])
    lines = [
        Text.assemble((f"{name:<{width}} ", "bold"), (sample["prompt"], "cyan"), written)
        for sample in found
        for name, written in sample["written"].items()
    ]
    return Group(*lines)


def spread_table(spreads: "SeedSpreads") -> Table:
    rows = [
        [name, *(f"{of.mean:.4f} ± {of.standard_deviation:.4f}" for of in stages.values())]
        for name, stages in spreads.sets.items()
    ]
    title = f"Mean and standard deviation over {len(spreads.runs)} seeds: {', '.join(spreads.runs)}"
    return table(title, ("set", "before ablation", "ablated", "calibrated"), rows)
