"""excise label SOURCE --domain DOMAIN --examples FILE --out LABELS"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from excise.cli.arguments import parse
from excise.data.engines import Engine
from excise.data.labelling import LabelConfig
from excise.labels import RETAIN, UNLABELED

if TYPE_CHECKING:
    from excise.data.labelling import LabelReport, Split
    from excise.data.thresholds import Rates


@dataclass(frozen=True)
class LabelArguments:
    """Label documents as forget data, as retain data, or not at all, with a classifier trained from examples."""

    source: tyro.conf.Positional[str]
    """A file or folder (.jsonl, .jsonl.gz, .jsonl.zst, .parquet, .txt), or any other source of `excise prepare`."""
    out: Path
    """The folder for labels.jsonl.gz, report.json and report.png."""
    config: Annotated[LabelConfig, tyro.conf.arg(name="")]
    engine: Engine = "local"
    processes: int = os.cpu_count() or 1


def main(args: Sequence[str]) -> int:
    arguments = parse(LabelArguments, args, "label")
    from excise.data.labelling import LABELS, PICTURE, REPORT, label_corpus
    from excise.report.classifier_plots import write_label_report

    console = Console(soft_wrap=True, markup=False)
    with console.status("training") as status:
        report = label_corpus(
            arguments.source,
            arguments.out,
            arguments.config,
            engine=arguments.engine,
            processes=arguments.processes,
            listener=lambda n_documents: status.update(f"{n_documents:,} documents scored"),
        )
    write_label_report(report, arguments.out)
    console.print(split_table(report))
    if report.n_bad_rows:
        first = report.first_bad_rows[0]
        console.print(f"{report.n_bad_rows} of {report.n_rows} rows were left out (the first: {first})")
    for name in (LABELS, PICTURE, REPORT):
        console.print(f"wrote {arguments.out / name}", highlight=False)
    return 0


def split_table(report: "LabelReport") -> Table:
    """The split of documents, and of sentences, with how good it should be and how good it was."""
    table = Table(title=f"Three-way split for {report.config.domain}")
    table.add_column("")
    units = {"documents": report.documents} | ({"sentences": report.sentences} if report.sentences else {})
    rows = [_rows(split, report.config.domain) for split in units.values()]
    for name in units:
        table.add_column(name, justify="right")
    for title in rows[0]:
        table.add_row(title, *(column.get(title, "") for column in rows))
    return table


def _rows(split: "Split", domain: str) -> dict[str, str]:
    numbers = {label: f"{split.labels.get(label, 0):,}" for label in (domain, RETAIN, UNLABELED)}
    rows = {
        f"labelled {domain} (score from)": f"{numbers[domain]} ({split.thresholds.forget:.4f})",
        "labelled retain (score up to)": f"{numbers[RETAIN]} ({split.thresholds.retain:.4f})",
        "unlabeled": numbers[UNLABELED],
    }
    if split.expected:
        rows |= _quality(split.expected, "expected on the source")
    if split.held_out:
        rows |= _quality(split.held_out.rates, f"on {split.held_out.on}")
        rows[f"ROC AUC on {split.held_out.on}"] = f"{split.held_out.roc.auc:.4f}"
    return rows


def _quality(rates: "Rates", where: str) -> dict[str, str]:
    return {
        f"recall {where}": f"{rates.recall:.3f}",
        f"precision {where}": "-" if rates.precision is None else f"{rates.precision:.3f}",
        f"false positive rate {where}": f"{rates.false_positive_rate:.4f}",
    }
