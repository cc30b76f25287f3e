"""What unlearning needs of a model, for the native GPT and for HuggingFace causal language models.

Shapes: B documents, one a row, T positions, N of them that hold a token, D d_model, V vocabulary.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excise.data.packing import IGNORED, Batch
from excise.model.gpt import GPT
from excise.routing.route import PLAIN

MLP_NAMES = (("mlp",), ("feed_forward",), ("ffn",), ("fc1", "fc2"))
"""What the MLP of a block is called, or the layers that it is made of."""


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model whose blocks can be reached; they count from 0."""

    blocks: nn.ModuleList
    logits: Callable[[Batch], Tensor]

    def losses(self, batch: Batch) -> Tensor:
        """The loss at each position (B T), 0 where nothing stands."""
        logits = self.logits(batch).float().transpose(1, 2)  # B V T
        return cross_entropy(logits, batch.targets, ignore_index=IGNORED, reduction="none")

    def hidden(self, batch: Batch, layer: int) -> Tensor:
        """The hidden states after a block where a token stands (N D)."""
        seen: list[Tensor | tuple[Tensor, ...]] = []
        with self.blocks[layer].register_forward_hook(lambda block, inputs, output: seen.append(output)):
            self.logits(batch)
        (output,) = seen
        states = output[0] if isinstance(output, tuple) else output  # B T D
        return states[batch.documents >= 0].float()

    def mlp(self, layer: int) -> list[nn.Parameter]:
        """W_1, b_1, W_2 and b_2 of a block, in whatever pieces they are stored."""
        children = dict(self.blocks[layer].named_children())
        for names in MLP_NAMES:
            if all(name in children for name in names):
                return [parameter for name in names for parameter in children[name].parameters()]
        known = ", ".join("+".join(names) for names in MLP_NAMES)
        raise ValueError(f"a {type(self.blocks[layer]).__name__} has {', '.join(children)}, no MLP (known: {known})")


def language_model(model: nn.Module) -> LanguageModel:
    """The same model as unlearning sees it."""
    if isinstance(model, GPT):
        return LanguageModel(model.blocks, lambda batch: model(**batch.inputs, route=PLAIN))
    transformers = sys.modules.get("transformers")  # whoever has such a model has imported it
    if transformers is not None and isinstance(model, transformers.PreTrainedModel):
        return LanguageModel(_blocks(model), lambda batch: _logits(model, batch))
    raise ValueError(f"a {type(model).__name__} cannot unlearn; give a GPT or a HuggingFace causal language model")


def _logits(model: Any, batch: Batch) -> Tensor:
    mask = (batch.documents >= 0).long()
    output = model(input_ids=batch.tokens, attention_mask=mask, position_ids=batch.positions, use_cache=False)
    return output.logits  # type: ignore[no-any-return]


def _blocks(model: Any) -> nn.ModuleList:
    """The outermost list of as many modules as the model has hidden layers."""
    n_layers = getattr(model.config, "num_hidden_layers", None)
    for part in model.modules():
        if isinstance(part, nn.ModuleList) and len(part) == n_layers:
            return part
    raise ValueError(f"{type(model).__name__} has no list of config.num_hidden_layers={n_layers} blocks")
