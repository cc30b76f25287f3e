"""What each row of one micro-batch sees and updates: the labels of the rows, turned into row masks per part.

Shapes: B rows of a batch, T positions. A "row" below is one position of one sequence, the unit of every linear layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from excise.routing.rules import Effect

Rows = bool | Tensor
"""True for all rows, False for none, or a boolean mask (B T 1)."""


@dataclass(frozen=True)
class Route:
    """Row masks per part; a part that is absent is touched in no row."""

    hide: Mapping[str, Rows] = field(default_factory=dict)
    detach: Mapping[str, Rows] = field(default_factory=dict)
    freeze: Mapping[str, Rows] = field(default_factory=dict)
    same_label: Tensor | None = None
    """B T T: which pairs of rows share a label; given only where a document mixes labels."""

    def gone(self, part: str) -> bool:
        """Whether a part is hidden from every row, so that its units need not be computed."""
        return self.hide.get(part, False) is True


PLAIN = Route()
"""Unlabeled data: everything is seen and updated."""


def single_route(effect: Effect) -> Route:
    """The route of a micro-batch whose rows all have one label: no masks, and less work than plain training."""

    def all_rows(parts: frozenset[str]) -> dict[str, Rows]:
        return dict.fromkeys(sorted(parts), True)

    return Route(all_rows(effect.hide), all_rows(effect.detach), all_rows(effect.freeze))


def mixed_route(effects: Sequence[Effect], labels: Tensor, *, mixed_documents: bool = False) -> Route:
    """The route of a micro-batch with labels (B T), by the effect of each label.

    Where a document mixes labels, gradients must not cross between its labels either; attention then needs `same_label`.
    """

    def masks(of_label: Sequence[frozenset[str]]) -> dict[str, Rows]:
        return {part: rows([part in named for named in of_label]) for part in sorted(frozenset().union(*of_label))}

    def rows(of_label: Sequence[bool]) -> Tensor:
        # Comparing with each label sends nothing to the device, which would stop it.
        found = [labels == label for label, named in enumerate(of_label) if named]
        return torch.stack(found).any(0).unsqueeze(-1)  # B T 1

    return Route(
        hide=masks([effect.hide for effect in effects]),
        detach=masks([effect.detach for effect in effects]),
        freeze=masks([effect.freeze for effect in effects]),
        same_label=labels.unsqueeze(-1) == labels.unsqueeze(-2) if mixed_documents else None,
    )
