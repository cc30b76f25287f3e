"""Logit calibration (paper, appendix I): one bias per logit that minimises forget loss + alpha x retain loss.

Without it a loss after ablation can be high for a shallow reason, the removed domain's tokens having become improbable
altogether. It is fitted on documents that no test uses, for every model alike. An L2 keeps tokens that never occur in
those documents from drifting to minus infinity, and rare ones from following chance; it counts for less and less as the
documents grow. The problem is convex, and as a bias b turns the probabilities p of a prediction into
p exp(b) / (p . exp(b)), the model runs only once: an iteration is two products of a matrix and a vector.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from excise.data.packing import IGNORED, Corpus
from excise.evals.losses import batches_of, without_modules
from excise.labels import GROUPS, RETAIN, nearest
from excise.model.gpt import GPT

ALPHA = 100.0
PRIOR = 4.0
"""The L2 on every bias, in predictions of its token: a normal prior with a variance of 1/4."""
ROWS_PER_SET = 65536
SCALINGS = 10
"""Iterations, each of which raises every bias by what its token lacks. Forget losses are then within 0.005 of the
optimum's, retain losses within 0.001."""
CHUNK = 1024
"""Predictions whose probabilities are computed at a time."""
KEPT_BYTES, KEPT_SHARE = 1 << 32, 1 / 3
"""Probabilities that take more memory than this, or than this share of what a GPU has free, are computed anew in every
iteration."""


@torch.no_grad()
def calibrate(
    model: GPT,
    sets: Mapping[str, Corpus],
    removed: Sequence[str],
    context: int,
    *,
    weights: Mapping[str, float] | None = None,
    rows_per_set: int = ROWS_PER_SET,
) -> Tensor:
    """The bias (V) fitted on these sets, of which `retain` weighs alpha and every domain 1 where no weights are given.

    Weights of their own for `adjacent` and `general` data replace that of `retain`.

    Of a larger set, `rows_per_set` predictions are drawn from all over it: those of one document are much alike, so few
    from many documents tell more than many from few.
    """
    of_set = weights or default_weights(sets)
    if unknown := [name for name in of_set if name not in sets]:
        raise ValueError(f"there is no set {unknown[0]!r} to calibrate on; {nearest(unknown[0], sets)}")
    hidden, targets, row_weights = _gather(model, sets, removed, context, of_set, rows_per_set)
    wanted = torch.zeros(model.config.vocabulary_size, device=hidden.device).index_add_(0, targets, row_weights)
    l2 = l2_of(wanted, torch.bincount(targets, minlength=len(wanted)), row_weights.max())
    chunks = list(zip(_probabilities(model, hidden, removed), row_weights.split(CHUNK), strict=True))  # type: ignore[no-untyped-call]

    def expected(bias: Tensor) -> Tensor:
        """The weight that each token would have (V), which the optimum makes equal to `wanted` but for the L2."""
        factor, total = bias.exp(), torch.zeros_like(bias)
        for probabilities, weights in chunks:
            p = probabilities()  # N V
            with torch.autocast(p.device.type, enabled=False):  # the model may be imprecise, but not the fit to it
                total += (weights / (p @ factor)) @ p
        return total * factor

    bias = torch.zeros_like(wanted)
    for _ in range(SCALINGS):
        bias += (((wanted - l2 * bias).clamp_min(0) + l2) / (expected(bias) + l2)).log()
    return bias


def default_weights(sets: Iterable[str]) -> dict[str, float]:
    """The paper's: alpha for the retain data, 1 for each domain."""
    return {name: ALPHA if name == RETAIN else 1.0 for name in sets if name not in GROUPS}


def n_evaluated(
    calibration: Mapping[str, Corpus],
    test: Mapping[str, Corpus],
    removed: Sequence[str],
    weights: Mapping[str, float] | None = None,
) -> int:
    """Predictions that calibration and the losses at every stage take."""
    calibrating = sum(calibration[name].n_predicted for name in weights or default_weights(calibration))
    # Sets within others cost nothing, and without modules there is one stage to pass through the model.
    return calibrating + (2 if removed else 1) * sum(test[name].n_predicted for name in default_weights(test))


def l2_of(wanted: Tensor, counts: Tensor, heaviest: Tensor) -> Tensor:
    """The L2 of every bias (V), in predictions that weigh as much as those of its token do on average, a prediction of the
    heaviest set counted with them.

    So a domain's common tokens move by their own evidence, though retain data weigh a hundredfold, and its rare ones and
    those that never occur stand still.
    """
    return PRIOR * (wanted + heaviest) / (counts + 1)


def _probabilities(model: GPT, hidden: Tensor, removed: Sequence[str]) -> list[Callable[[], Tensor]]:
    """What the model predicts without a bias (N V), a chunk at a time."""
    route = without_modules(model, removed)

    def compute(rows: Tensor) -> Tensor:
        return model.logits(rows, route).softmax(-1, dtype=torch.float32)

    def kept(p: Tensor) -> Callable[[], Tensor]:
        return lambda: p

    parts: list[Tensor] = list(hidden.split(CHUNK))  # type: ignore[no-untyped-call]
    if len(hidden) * model.config.vocabulary_size * 4 > room(hidden.device):
        return [partial(compute, rows) for rows in parts]
    return [kept(compute(rows)) for rows in parts]


def room(device: torch.device) -> float:
    """Bytes that probabilities may take."""
    return KEPT_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else KEPT_BYTES


def _gather(
    model: GPT,
    sets: Mapping[str, Corpus],
    removed: Sequence[str],
    context: int,
    of_set: Mapping[str, float],
    limit: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """What the output head reads (N D), targets (N) and weights (N), which add up to its weight in every set."""
    route = without_modules(model, removed)
    hidden, targets, weights = [], [], []
    for name, weight in of_set.items():
        drawn = torch.randperm(sets[name].n_predicted, generator=torch.Generator().manual_seed(0))[:limit]
        chosen = torch.zeros(sets[name].n_predicted, dtype=torch.bool).index_fill_(0, drawn, True)
        for batch in batches_of(model, sets[name], context):
            h = model.hidden(**batch.inputs, route=route)
            here, chosen = chosen.split([batch.n_predicted, len(chosen) - batch.n_predicted])  # type: ignore[no-untyped-call]
            predicted, here = batch.targets != IGNORED, here.to(h.device)
            hidden.append(h[predicted][here])
            targets.append(batch.targets[predicted][here])
        weights.append(torch.full((len(drawn),), weight / len(drawn)))
    return torch.cat(hidden), torch.cat(targets), torch.cat(weights).to(hidden[0].device)
