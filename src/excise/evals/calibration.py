"""Logit calibration (paper, appendix I): one bias per logit that minimises forget loss + alpha x retain loss.

Without it a loss after ablation can be high for a shallow reason, the removed domain's tokens having become improbable
altogether. It is fitted on documents that no test uses, for every model alike. A tiny L2 keeps tokens that never occur
in those documents from drifting to minus infinity. The problem is convex.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from excise.data.packing import IGNORED, Corpus
from excise.evals.losses import batches_of, without_modules
from excise.labels import RETAIN
from excise.model.gpt import GPT

Calibrate = Callable[[GPT, Mapping[str, Corpus], Sequence[str]], Tensor]
ALPHA = 100.0
L2 = 1e-5
CHUNK = 256
"""Rows whose logits are in memory at a time."""


@torch.no_grad()
def calibrate(
    model: GPT,
    sets: Mapping[str, Corpus],
    removed: Sequence[str] = (),
    *,
    alpha: float = ALPHA,
    iterations: int = 40,
    rows_per_set: int = 16384,
) -> Tensor:
    """The bias (V) fitted on these sets, of which `retain` weighs alpha and every domain 1.

    Of a larger set, `rows_per_set` predictions are drawn from all over it: those of one document are much alike, so few
    from many documents tell more than many from few.
    """
    hidden, targets, weights = _gather(model, sets, removed, alpha, rows_per_set)
    route = without_modules(removed)
    V = model.config.vocabulary_size
    wanted = torch.zeros(V, device=hidden.device).index_add_(0, targets, weights)
    # The curvature of the loss in each bias is about the frequency of its token: scaled by that, all are alike.
    scale = (wanted + alpha / len(targets)).rsqrt()
    bias = torch.zeros(V, device=hidden.device, requires_grad=True)
    solver = torch.optim.LBFGS([bias], max_iter=iterations, history_size=20, line_search_fn="strong_wolfe")

    @torch.no_grad()
    def objective() -> Tensor:
        shift = bias * scale
        loss = L2 / 2 * shift.double().square().sum()
        expected = torch.zeros_like(shift)
        for first in range(0, len(targets), CHUNK):
            h, t, w = (rows[first : first + CHUNK] for rows in (hidden, targets, weights))
            p = model.logits(h, route, shift).float().softmax(-1)
            loss -= (w * p.gather(-1, t.unsqueeze(-1)).squeeze(-1).log()).sum()
            expected += w @ p
        bias.grad = (expected - wanted + L2 * shift) * scale
        return loss

    solver.step(objective)  # type: ignore[no-untyped-call]
    return (bias * scale).detach()


def _gather(
    model: GPT, sets: Mapping[str, Corpus], removed: Sequence[str], alpha: float, rows_per_set: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What the output head reads (N D), targets (N) and weights (N) that add up to alpha or 1 per set."""
    route = without_modules(removed)
    hidden, targets, weights = [], [], []
    for name, corpus in sets.items():
        states, wanted = [], []
        for batch in batches_of(model, corpus):
            predicted = batch.targets != IGNORED
            h = model.hidden(batch.tokens, positions=batch.positions, documents=batch.documents, route=route)
            states.append(h[predicted])
            wanted.append(batch.targets[predicted])
        drawn = torch.randperm(corpus.n_predicted, generator=torch.Generator().manual_seed(0))[:rows_per_set]
        hidden.append(torch.cat(states)[drawn])
        targets.append(torch.cat(wanted)[drawn])
        weights.append(torch.full((len(drawn),), (alpha if name == RETAIN else 1.0) / len(drawn)))
    return torch.cat(hidden), torch.cat(targets), torch.cat(weights).to(hidden[0].device)
