"""What some measures need beside the run; apart from them, so that the command line can list it at once."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OF_MEASURES: Mapping[str, Sequence[str]] = {
    "baselines": ("leakage", "compute_penalty"),
    "against": ("token_losses", "samples"),
    "questions": ("multiple_choice",),
    "prompts": ("samples",),
    "documents": ("gradient_norms",),
}
"""The measures that look at an option."""


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What some measures need beside the run."""

    baselines: tuple[Path, ...] = ()
    """Evaluated runs to compare with: standard runs with growing numbers of forget tokens for `leakage`, no-filter runs
    of several sizes for `compute_penalty`."""
    against: Path | None = None
    """A run whose ablated model is the reference of `token_losses`, and joins `samples`."""
    questions: Path | None = None
    """A jsonl file with question, choices and answer, for `multiple_choice`."""
    prompts: tuple[str, ...] = ()
    """Texts that `samples` continues."""
    documents: int = 256
    """Documents of each set that `gradient_norms` looks at, drawn at random."""

    def unused(self, measures: Collection[str]) -> str:
        """A sentence on an option that none of these measures looks at; empty where there is none."""
        for option, wanted in OF_MEASURES.items():
            if getattr(self, option) != getattr(MeasureOptions(), option) and not {*wanted} & {*measures}:
                return f"--{option} is for {' and '.join(wanted)}; name it too, as in --measures losses {wanted[0]}"
        return ""

    def __post_init__(self) -> None:
        if self.documents < 1:
            raise ValueError(f"documents={self.documents} leaves none to look at; it must be at least 1")
