"""excise demo"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from excise.cli.arguments import parse
from excise.cli.tables import FittedTable, plain_table

if TYPE_CHECKING:
    from excise.evals.results import Claim


TOKEN_VECTORS = (
    "SGTM with token vectors: the paper’s SGTM does not have these; excise reproduce figure-4a follows the paper."
)


@dataclass(frozen=True)
class DemoArguments:
    """Train no filter, data filter, SGTM and a perfect filter on bilingual stories, and compare what they forgot."""

    directory: str = ""
    """Where runs, results.json, tradeoff.png and report.html go, by default excise-demo, with the seed where one is given;
    models that are there already are not trained again."""
    seed: int = 0


def main(args: Sequence[str]) -> int:
    arguments = parse(DemoArguments, args, "demo")
    from excise.cli.progress import ProgressBar
    from excise.config import override
    from excise.recipes.demo import demo_run, run_demo
    from excise.report.page import CAVEAT, write_report
    from excise.report.plots import save_tradeoff

    console = Console(soft_wrap=True, markup=False)
    directory = Path(arguments.directory or f"excise-demo{f'-{arguments.seed}' if arguments.seed else ''}")
    recipe = override(demo_run(), {"train.seed": arguments.seed, "data.seed": arguments.seed})
    with ExitStack() as bars:
        results = run_demo(directory, recipe, lambda method: [bars.enter_context(ProgressBar(console, method))])
    plain = asdict(results)
    save_tradeoff(plain, directory / "tradeoff.png")
    write_report(plain, directory / "report.html")
    console.print(losses_table(plain["losses"]))
    console.print(f"{TOKEN_VECTORS}\n", highlight=False, soft_wrap=False)
    console.print(claims_table(results.claims))
    console.print(f"\n{CAVEAT}\n", highlight=False, soft_wrap=False)
    for name in ("results.json", "tradeoff.png"):
        console.print(f"wrote {directory / name}", highlight=False)
    console.print(f"wrote {directory / 'report.html'}: open it in a browser", highlight=False)
    return 0 if all(claim.holds for claim in results.claims) else 1


def losses_table(losses: dict[str, dict[str, dict[str, float]]]) -> FittedTable:
    from excise.report.plots import METHODS

    stages = ("before", "ablated", "calibrated")
    labels = {method.name: method.label for method in METHODS}
    rows = [
        [labels[method], *(f"{sets[role][stage]:.3f}" for role in ("retain", "forget") for stage in stages)]
        for method, sets in losses.items()
    ]
    columns = [f"{language}\n{stage}" for language in ("English", "Spanish") for stage in stages]
    return FittedTable("Loss per token on stories that no model has seen", ["\nmethod", *columns], rows)


def claims_table(claims: Sequence["Claim"]) -> Table:
    table = plain_table("What the demo sets out to show")
    for column in ("claim", "bound", "measured", ""):
        table.add_column(column, justify="right" if column in ("bound", "measured") else "left")
    for claim in claims:
        verdict = Text("holds", "green") if claim.holds else Text("DOES NOT HOLD", "bold red")
        table.add_row(claim.name, f"{claim.bound:.3f}", f"{claim.value:.3f}", verdict)
    return table
