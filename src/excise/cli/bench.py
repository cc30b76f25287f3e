"""excise bench"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from excise.cli.arguments import parse


def main(args: Sequence[str]) -> int:
    from excise.bench import BenchConfig, bench

    config = parse(BenchConfig, args, "bench", BenchConfig())
    table = Table(title=f"Training steps of {config.rows} x {config.context} tokens, d_model {config.d_model}")
    table.add_column("variant")
    table.add_column("tokens/s", justify="right")
    table.add_column("time against plain", justify="right")
    for timing in bench(config):
        table.add_row(timing.name, f"{timing.tokens_per_second:,.0f}", f"{timing.ratio:.3f}")
    Console(soft_wrap=True).print(table)
    return 0
