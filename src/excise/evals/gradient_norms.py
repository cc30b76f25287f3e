"""Which parameters a document would update (paper, section 4.4, figure 4b), and beyond the paper, in which direction.

Every document counts as unlabeled, so nothing is hidden, detached or frozen; its loss is the mean over its first
`context` predictions. A batch has a document a row and takes one forward and one backward pass. The gradient of a matrix
from one document is g^T x over its row: one batched product a layer, measured and dropped before the next layer.

Shapes: B documents, T positions, D d_model, V vocabulary, R reference gradients, one for each domain.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise.data.packing import IGNORED, Batch, Corpus, collate, truncate
from excise.evals.losses import batches_of
from excise.labels import part_of
from excise.model.gpt import GPT
from excise.routing.fused import Added
from excise.routing.route import PLAIN
from excise.routing.split import Embedding, InputSplit, Norm, OutputSplit, TokenTable

DOCUMENTS_PER_BATCH = 16
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NARROWEST = 0.02  # bandwidth of a density, in decades: equal values would otherwise have none
Floats = NDArray[np.float64]
ALL = slice(None)


@dataclass(frozen=True)
class Spread:
    """One number per document, in their order; a document without a token to predict has none."""

    values: Sequence[float]
    quantiles: Mapping[str, float]

    @staticmethod
    def of(values: Floats) -> "Spread":
        return Spread(values.tolist(), {str(q): float(np.quantile(values, q)) for q in QUANTILES})


@dataclass(frozen=True)
class GradientNorms:
    """What the documents of each set do to each part of a model; by set, then by part."""

    relative_gradient_norm: Mapping[str, Mapping[str, Spread]]
    """|gradient| / |parameters|."""
    cosine: Mapping[str, Mapping[str, Mapping[str, Spread]]]
    """Between a document's gradient and that of a domain's labelled forget documents; by domain at last."""


def gradient_norms(
    model: GPT, sets: Mapping[str, Corpus], labelled: Mapping[str, Corpus], context: int | None = None
) -> GradientNorms:
    """Relative gradient norms of each set's documents, and cosines with each domain's labelled ones, all in float32."""
    for name, corpus in (*sets.items(), *labelled.items()):
        if not corpus.n_predicted:
            raise ValueError(f"the set {name!r} has no token to predict; give it a document of at least two tokens")
    model, context = deepcopy(model).float().requires_grad_(), context or model.config.context
    references = _labelled_gradients(model, labelled, context)
    norms, per_document = _norms(model, references), _PerDocument(model, references)
    relative: dict[str, dict[str, Spread]] = {}
    cosine: dict[str, dict[str, dict[str, Spread]]] = {}
    for name, corpus in sets.items():
        products = per_document.of_corpus(corpus, context)
        found = {part: _ratios(products[part], norms[part], f"{part!r} on {name!r}") for part in norms}
        relative[name] = {part: Spread.of(x[:, 0]) for part, x in found.items()}
        cosine[name] = {p: {d: Spread.of(x[:, i]) for i, d in enumerate(labelled, 1)} for p, x in found.items()}
    return GradientNorms(relative, cosine)


def densities(norms: GradientNorms, n_points: int = 512) -> tuple[Floats, dict[str, dict[str, Floats]]]:
    """A grid of log10 relative gradient norms, and the density of each set and part on it, as figure 4b draws them."""
    logs = {
        name: {part: np.log10(spread.values) for part, spread in parts.items()}
        for name, parts in norms.relative_gradient_norm.items()
    }
    curves = [x for parts in logs.values() for x in parts.values()]
    margin = 4 * max(_bandwidth(x) for x in curves)
    grid = np.linspace(min(x.min() for x in curves) - margin, max(x.max() for x in curves) + margin, n_points)
    return grid, {name: {part: _density(x, grid) for part, x in parts.items()} for name, parts in logs.items()}


def _density(x: Floats, grid: Floats) -> Floats:
    kernels = np.exp(-(((grid[:, None] - x) / _bandwidth(x)) ** 2) / 2)
    return np.asarray(kernels.mean(1) / (_bandwidth(x) * np.sqrt(2 * np.pi)))


def _bandwidth(x: Floats) -> float:
    """Scott's rule."""
    return max(NARROWEST, float(x.std(ddof=min(1, len(x) - 1)) * len(x) ** -0.2))


def _labelled_gradients(model: GPT, labelled: Mapping[str, Corpus], context: int) -> dict[str, Tensor]:
    """By parameter, the gradient of each domain's mean loss over all its predicted tokens (R, size of the parameter)."""
    rows = {name: [p.new_zeros(0, p.numel())] for name, p in model.named_parameters()}
    for corpus in labelled.values():
        model.zero_grad(set_to_none=True)
        for batch in batches_of(model, corpus, context):
            hidden = model.hidden(**batch.inputs, route=PLAIN)
            loss, _ = model.losses(hidden, batch.targets, torch.ones_like(hidden[..., 0]) / corpus.n_predicted)
            loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            rows[name].append(parameter.grad.reshape(1, -1))
    return {name: torch.cat(of_name) for name, of_name in rows.items()}


def _norms(model: GPT, references: Mapping[str, Tensor]) -> dict[str, Floats]:
    """The norms of each part's parameters and of its reference gradients (1+R)."""
    squares: dict[str, Floats] = {}
    for name, parameter in model.named_parameters():
        rows = torch.cat([parameter.detach().reshape(1, -1), references[name]])
        squares[part_of(name)] = squares.get(part_of(name), 0.0) + rows.double().square().sum(1).cpu().numpy()
    return {part: np.sqrt(of_part) for part, of_part in squares.items()}


def _ratios(products: Floats, norms: Floats, where: str) -> Floats:
    """For every document: its relative gradient norm, and its cosines with the references (N 1+R)."""
    lengths = np.sqrt(products[:, :1])
    if not (np.isfinite(products).all() and (lengths * norms > 0).all()):
        raise ValueError(f"parameters or gradients of part {where} are zero or not finite; measure an unablated model")
    return np.hstack([lengths, products[:, 1:] / lengths]) / norms


class _PerDocument:
    """By part, for every document: its squared gradient norm, and its products with the references (B 1+R).

    The model is given over to it: its parameters ask for no gradient any more, and its layers have hooks.
    """

    def __init__(self, model: GPT, references: Mapping[str, Tensor]) -> None:
        self.model, self.references = model.requires_grad_(False), references
        for name, layer in model.named_modules():
            if isinstance(layer, (Embedding, TokenTable)):
                layer.register_forward_hook(partial(self._watch, partial(self._lookup, name, layer)))
            elif isinstance(layer, (OutputSplit, InputSplit, Norm)):
                layer.register_forward_hook(partial(self._watch, partial(self._layer, name, layer)))

    def of_corpus(self, corpus: Corpus, context: int) -> dict[str, Floats]:
        pieces = truncate(corpus, context)
        longest_first, batches = np.argsort(-pieces.length, kind="stable"), []
        for first in range(0, len(pieces), DOCUMENTS_PER_BATCH):
            rows = longest_first[first : first + DOCUMENTS_PER_BATCH]
            batch = collate(corpus, pieces, rows[:, None].tolist(), int(pieces.length[rows[0]]))
            batches.append(self.of_batch(batch.to(next(self.model.parameters()).device)))
        in_order = np.argsort(longest_first)
        return {part: torch.cat([batch[part] for batch in batches]).numpy()[in_order] for part in batches[0]}

    def of_batch(self, batch: Batch) -> dict[str, Tensor]:
        shape = len(batch.tokens), 1 + len(next(iter(self.references.values())))
        self.products = {part_of(name): r.new_zeros(shape, dtype=torch.double) for name, r in self.references.items()}
        hidden = self.model.hidden(**batch.inputs, route=PLAIN)
        hidden.backward(self._head(hidden.detach(), batch))  # type: ignore[no-untyped-call]
        return {part: products.cpu() for part, products in self.products.items()}

    def _watch(
        self, measure: Callable[..., None], _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | Added
    ) -> None:
        value = output.value if isinstance(output, Added) else output
        value.requires_grad_().register_hook(partial(measure, inputs[0]))  # type: ignore[no-untyped-call]

    def _layer(self, name: str, layer: OutputSplit | InputSplit | Norm, x: Tensor, g: Tensor) -> None:
        gradient = (g * nn.functional.layer_norm(x, x.shape[-1:])).sum(1) if isinstance(layer, Norm) else g.mT @ x
        self._measure(f"{name}.weight", layer.weight, gradient, axis=1 if isinstance(layer, InputSplit) else 0)
        if layer.bias is not None:
            self._measure(f"{name}.bias", layer.bias, g.sum(1))

    @torch.no_grad()
    def _head(self, hidden: Tensor, batch: Batch) -> Tensor:
        """The gradient of what the head reads (B T D); the head's own is kept in the rows of the tokens looked up."""
        tokens, bias = self.model.tokens, self.model.output_bias
        dhidden, self.head_rows = torch.zeros_like(hidden), torch.zeros_like(hidden)
        for b, n in enumerate((batch.targets != IGNORED).sum(1).tolist()):
            h, only = hidden[b, :n], slice(b, b + 1)
            g = self.model.logits(h).softmax(-1)  # n V
            g[torch.arange(n), batch.targets[b, :n]] -= 1
            gradient = g.T @ (h / n)  # V D
            added = [gradient[tokens.tokens_of(part)] for part in tokens.modules_at]
            of_parts = torch.cat([gradient, *added])  # in the order of the parts of the table
            self._measure("tokens.weight", tokens.weight, of_parts.unsqueeze(0), only=only)
            if bias is not None:
                self._measure("output_bias", bias, g.mean(0, keepdim=True), only=only)
            dhidden[b, :n] = g @ tokens.full(PLAIN) / n
            self.head_rows[b, :n] = gradient[batch.tokens[b, :n]]
        return dhidden

    def _lookup(self, name: str, layer: Embedding | TokenTable, ids: Tensor, g: Tensor) -> None:
        """What looking up adds: |lookup|^2, and |head + lookup|^2 - |head|^2 where the head has the same table."""
        same = (ids.unsqueeze(-1) == ids.unsqueeze(-2)).to(g.dtype)  # B T T
        rows = same @ g + (2 * self.head_rows if layer is self.model.tokens else 0)  # B T D
        for part, table in layer.weight.items():
            look_up = partial(layer.look_up, part) if isinstance(layer, TokenTable) else torch.Tensor.__getitem__
            mine = g * look_up(table.new_ones(len(table), 1), ids)
            tables = self.references[f"{name}.weight.{part}"].view(-1, *table.shape)  # R V D
            looked_up = (look_up(reference, ids) for reference in tables)
            self.products[part] += torch.stack([(mine * x).sum((1, 2)) for x in (rows, *looked_up)], 1)

    def _measure(self, name: str, full: nn.ParameterDict, gradient: Tensor, axis: int = 0, only: slice = ALL) -> None:
        """Count the gradients (B and the shape of the full parameter) of all documents, or of some only."""
        pieces = gradient.split_with_sizes([parameter.shape[axis] for parameter in full.values()], 1 + axis)
        for part, piece in zip(full, pieces, strict=True):
            rows = piece.flatten(1)
            # Neither a matrix product nor a norm: over millions of values, those lose three digits in float32.
            others = [rows, *self.references[f"{name}.{part}"]]
            self.products[part][only] += torch.stack([torch.linalg.vecdot(rows, other) for other in others], 1)
