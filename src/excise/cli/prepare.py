"""excise prepare SOURCE --out DATA"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from excise.cli.arguments import parse
from excise.data.engines import Engine
from excise.data.prepare import PrepareConfig
from excise.data.shards import Shard


@dataclass(frozen=True)
class PrepareArguments:
    """Tokenise a source into shards that training reads; what an interrupted run has done is not done again."""

    source: tyro.conf.Positional[str]
    """A file or folder (.jsonl, .jsonl.gz, .jsonl.zst, .parquet, .txt), `stories`, `topics`, `hf:NAME`,
    `tinystories:NAME-OR-FOLDER` or `wikipedia:FILE-OR-FOLDER`."""
    out: Path
    """The folder to write."""
    engine: Engine = "local"
    processes: int = os.cpu_count() or 1
    config: Annotated[PrepareConfig, tyro.conf.arg(name=""), tyro.conf.UseAppendAction] = field(
        default_factory=PrepareConfig
    )


def main(args: Sequence[str]) -> int:
    arguments = parse(PrepareArguments, args, "prepare")
    from excise.cli.inspect import counts_table, rough_tests
    from excise.data.prepare import prepare
    from excise.data.slips import told_labels

    console = Console(soft_wrap=True, markup=False)
    with PrepareProgress(console) as progress:
        manifest = prepare(
            arguments.source,
            arguments.out,
            arguments.config,
            engine=arguments.engine,
            processes=arguments.processes,
            listener=progress,
        )
    console.print(counts_table(manifest))
    console.print(told_labels(arguments.out, manifest), highlight=False)
    console.print(rough_tests(arguments.out, manifest), end="", highlight=False)
    if manifest.n_bad_rows:
        first = manifest.first_bad_rows[0]
        console.print(f"{manifest.n_bad_rows} of {manifest.n_rows} rows were left out (the first: {first})")
    console.print(f"wrote {arguments.out}", highlight=False)
    return 0


class PrepareProgress:
    """Shows the shards that are done, and how fast."""

    def __init__(self, console: Console) -> None:
        self.console, self.start = console, time.perf_counter()
        self.n_documents, self.text_bytes = 0, 0
        self.bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
        )
        self.task = self.bar.add_task("reading")

    def __enter__(self) -> "PrepareProgress":
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, shard: Shard) -> None:
        self.n_documents += shard.n_documents
        self.text_bytes += shard.text_bytes
        speed = self.text_bytes / 1e6 / (time.perf_counter() - self.start)
        if self.console.is_terminal:
            self.bar.start()  # only now: its thread must not be there when the workers are forked
            so_far = _amount(self.n_documents, self.text_bytes)
            self.bar.update(self.task, description=f"{so_far} so far  {speed:6.1f} MB/s")
        else:
            amount = _amount(shard.n_documents, shard.text_bytes)
            self.console.print(f"{shard.name}  {amount}  {speed:6.1f} MB/s", highlight=False)


def _amount(n_documents: int, text_bytes: int) -> str:
    return f"{n_documents:>9,} documents  {text_bytes / 1e6:9,.1f} MB"
