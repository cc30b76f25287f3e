"""excise inspect DATA"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from excise.cli.arguments import parse
from excise.data.shards import Manifest, Prepared
from excise.data.tokenised import Tokenised
from excise.labels import RETAIN, UNLABELED, nearest

CONTEXTS = (512, 1024)
FEW, N_NAMED = 20, 5
"""Test documents of a category under which its losses are rough, and how many such categories are named."""
COLOURS = ("red", "magenta", "yellow", "blue", "cyan")


@dataclass(frozen=True)
class InspectArguments:
    """Show what prepared data holds: counts, lengths, what packing saves, and documents with their labels."""

    data: tyro.conf.Positional[Path]
    """A folder written by excise prepare."""
    documents: int = 2
    """Documents to show."""
    split: str = "train"
    category: str = ""
    """Show documents of this category only."""
    label: str = ""
    """Show documents with this label only."""
    seed: int = 0


def main(args: Sequence[str]) -> int:
    arguments = parse(InspectArguments, args, "inspect")
    from excise.data.shards import load_prepared

    prepared = load_prepared(arguments.data)
    console = Console(soft_wrap=True, markup=False)
    console.print(counts_table(prepared.manifest))
    for title, column in (("category", "categories"), ("label", "labels")):
        console.print(by_name_table(prepared, title, column))
    console.print(rough_tests(arguments.data, prepared.manifest), end="", highlight=False)
    if arguments.split not in prepared.splits:
        raise ValueError(f"there is no split {arguments.split!r}; {nearest(arguments.split, prepared.splits)}")
    split = prepared.splits[arguments.split]
    console.print(lengths_table(split.lengths))
    console.print(packing_table(split.lengths))
    chosen = choose(split, arguments)
    for number in chosen:
        console.print(shown(prepared, split, int(number)))
    return 0


def counts_table(manifest: Manifest) -> Table:
    """Documents, tokens and bytes of every split."""
    table = table_of("split", "shards", "documents", "tokens", "MB of text", title="Prepared data")
    for split in dict.fromkeys(shard.split for shard in manifest.shards):
        shards = [shard for shard in manifest.shards if shard.split == split]
        sums = (sum(s.n_documents for s in shards), sum(s.n_tokens for s in shards))
        table.add_row(
            split, f"{len(shards)}", *(f"{n:,}" for n in sums), f"{sum(s.text_bytes for s in shards) / 1e6:,.1f}"
        )
    return table


def rough_tests(folder: Path, manifest: Manifest) -> str:
    """A line about categories of which the test split has few documents; empty where there are none."""
    from excise.data.shards import count

    tested, trained = (count(folder, manifest, split, "category") for split in ("test", "train"))
    few = {name: tested[name] for name in sorted(trained) if tested[name] < FEW}
    if not few:
        return ""
    named = [f"{name} ({n})" for name, n in few.items()][:N_NAMED]
    more = f" and {len(few) - N_NAMED} more" if len(few) > N_NAMED else ""
    return (
        f"under {FEW} test documents of {', '.join(named)}{more}, of which some go to calibration: their losses will be "
        f"rough; where they matter, {manifest.more_tests}\n"
    )


def by_name_table(prepared: Prepared, title: str, column: str) -> Table:
    """Documents and tokens of every category or label, by split."""
    documents: Counter[tuple[str, str]] = Counter()
    tokens: Counter[tuple[str, str]] = Counter()
    for name, split in prepared.splits.items():
        words = getattr(split, column)
        n_tokens = np.bincount(words.index, split.lengths - 1, minlength=len(words.names))
        for i, n in enumerate(np.bincount(words.index, minlength=len(words.names))):
            documents[words.names[i], name] += int(n)
            tokens[words.names[i], name] += int(n_tokens[i])
    splits = list(prepared.splits)
    table = table_of(title, *(f"{split} {what}" for split in splits for what in ("documents", "tokens")))
    for word in sorted({word for word, _ in documents}, key=lambda word: -tokens[word, splits[0]]):
        table.add_row(word, *(f"{counts[word, s]:,}" for s in splits for counts in (documents, tokens)))
    return table


def lengths_table(lengths: NDArray[np.int64]) -> Table:
    """How many documents have how many tokens, in doubling bins."""
    table = table_of("tokens", "documents", "")
    powers = np.floor(np.log2(np.maximum(lengths, 1))).astype(int)
    bins = np.bincount(powers)
    for power in range(int(powers.min()), len(bins)):
        bar = "█" * round(40 * bins[power] / bins.max())
        table.add_row(f"{2**power:,} - {2 ** (power + 1) - 1:,}", f"{bins[power]:,}", Text(bar, justify="left"))
    return table


def packing_table(lengths: NDArray[np.int64]) -> Table:
    """Empty positions with documents packed into rows, and with one a row."""
    from excise.data.packing import empty_shares

    table = table_of("context", "empty when packed", "one document a row")
    for context in CONTEXTS:
        table.add_row(f"{context:,}", *(f"{share:.2%}" for share in empty_shares(lengths, context)))
    return table


def choose(split: Tokenised, arguments: InspectArguments) -> NDArray[np.int64]:
    """Some documents of the category and label asked for."""
    candidates = np.ones(len(split), bool)
    for wanted, column in ((arguments.category, split.categories), (arguments.label, split.labels)):
        if wanted and wanted not in column.names:
            raise ValueError(f"there is no {wanted!r} in this split; {nearest(wanted, column.names)}")
        if wanted:
            candidates &= column.index == column.names.index(wanted)
    found = np.flatnonzero(candidates)
    return np.random.default_rng(arguments.seed).permutation(found)[: arguments.documents]


def shown(prepared: Prepared, split: Tokenised, number: int) -> Text:
    """A document decoded, every token in the colour of its label."""
    start = int(split.lengths[:number].sum())
    here = slice(start, start + int(split.lengths[number]))
    category = split.categories.names[split.categories.index[number]]
    label = split.labels.names[split.labels.index[number]]
    if split.token_labels:
        labels = [split.token_labels.names[i] for i in split.token_labels.index[here]]
    else:
        labels = [label] * int(split.lengths[number])
    text = Text(f"\n#{number}  category {category}  label {label}\n", style="bold")
    for word, tokens in runs(labels, split.tokens[here].tolist()):
        text.append(prepared.tokenizer.decode(tokens), style=colour(word, prepared))
    return text


def runs(labels: Iterable[str], tokens: Iterable[int]) -> list[tuple[str, list[int]]]:
    """Tokens in stretches of the same label."""
    stretches: list[tuple[str, list[int]]] = []
    for label, token in zip(labels, tokens, strict=True):
        if not stretches or stretches[-1][0] != label:
            stretches.append((label, []))
        stretches[-1][1].append(token)
    return stretches


def colour(label: str, prepared: Prepared) -> str:
    if label in (UNLABELED, RETAIN):
        return "not bold" if label == UNLABELED else "not bold green"
    known = sorted({name for shard in prepared.manifest.shards for name in (*shard.labels, *shard.token_labels)})
    domains = [name for name in known if name not in (UNLABELED, RETAIN)]
    return f"not bold {COLOURS[domains.index(label) % len(COLOURS)]}"


def table_of(*columns: str, title: str | None = None) -> Table:
    table = Table(title=title)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table
