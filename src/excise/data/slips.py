"""Labels as they were prepared: how many documents have each, and which look like slips of the pen.

What a run's domains are is not known yet, but a label is as good as always a category, or the name of a few of them.
"""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path

from excise.data.shards import Manifest, count, count_within
from excise.labels import RETAIN, UNLABELED

LIKE = 0.75
"""Likeness from which a word is taken for a slip of another: one letter in four or two in eight differ."""
N_NAMED = 5
"""Labels that are spoken of."""


def told_labels(folder: Path, manifest: Manifest) -> str:
    """A sentence on how many training documents have each label."""
    documents, tokens = count(folder, manifest, "train", "label"), count_within(folder, manifest, "train")
    if not tokens and set(documents) <= {UNLABELED}:
        if set(count(folder, manifest, "train", "category")) <= {UNLABELED}:
            return "no document has a category or a label, and training needs labels: make some with excise label"
        return "no document has a label of its own: training draws them from the categories (data.labels=simulated)"
    within = ", ".join(f"{n:,} {label}" for label, n in tokens.most_common() if label != UNLABELED)
    counts = ", ".join(f"{n:,} {label}" for label, n in documents.most_common())
    return f"labels of the training documents: {counts}" + (f"; of their tokens: {within}" if within else "")


def slips_in(folder: Path, manifest: Manifest) -> list[str]:
    """Sentences on labels that look like slips or, where there are categories, that are none; a few and how many more."""
    documents, tokens = count(folder, manifest, "train", "label"), count_within(folder, manifest, "train")
    categories = () if manifest.labels_are_categories else count(folder, manifest, "train", "category")
    amounts = {label: _of(n, "token") for label, n in tokens.items()}
    amounts |= {label: _of(n, "document") for label, n in documents.items()}
    known = {UNLABELED, RETAIN, *categories}
    found = list(_slips(documents + tokens, amounts, known, has_categories=bool(categories)))
    more = [f"and {len(found) - N_NAMED} more labels are no category"] if len(found) > N_NAMED else []
    return [*found[:N_NAMED], *more]


def _of(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' if n != 1 else ''}"


def _slips(n: Mapping[str, int], amounts: Mapping[str, str], known: set[str], *, has_categories: bool) -> Iterator[str]:
    for label in sorted(n.keys() - known):
        words = sorted(known | {other for other in n if n[other] > n[label]})
        if close := difflib.get_close_matches(label, words, n=1, cutoff=LIKE):
            is_odd = "is no category" if has_categories else f"is much like {close[0]!r}"
            yield f"label {label!r} ({amounts[label]}) {is_odd}; did you mean {close[0]!r}?"
        elif has_categories:
            yield (
                f"label {label!r} ({amounts[label]}) is no category; to train with it, say which categories are of it: "
                f"--data.forget {label}=CATEGORY"
            )
