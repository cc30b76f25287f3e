"""What some measures need beside the run; apart from them, so that the command line can list it at once."""

from dataclasses import dataclass
from pathlib import Path


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

    def __post_init__(self) -> None:
        if self.documents < 1:
            raise ValueError(f"documents={self.documents} leaves none to look at; it must be at least 1")
