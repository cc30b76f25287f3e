"""Take a module out of a trained model, the only place that does (paper, section 3.2, "Ablation").

Three ways. `remove` leaves a smaller model. `zero` keeps the shape, but a unit that is zero on both sides gets no
gradient, which hands a fine-tuning attacker dead capacity. `reinitialise` gives the attacker live capacity that knows
nothing: what leads into the units is drawn anew, and what leads out is zero, so that the model computes the same as
without the module until it is trained. Token vectors of a new module are zero.
"""

from typing import Literal

import torch

from excise.labels import forget_part, nearest, part_of
from excise.model.gpt import GPT
from excise.routing.split import InputSplit

Ablation = Literal["remove", "zero", "reinitialise"]


def ablate(model: GPT, domain: str, how: Ablation = "remove", seed: int = 0) -> GPT:
    """A copy of the model without the knowledge in one module; the model given is left alone."""
    if domain not in model.partition.domains:
        raise ValueError(f"the model has no module {domain!r}; {nearest(domain, model.partition.domains)}")
    partition = model.partition.without(domain) if how == "remove" else model.partition
    # Seeds of runs are never negative, so these are not the values that some run began with.
    ablated = GPT(model.config, partition, -1 - seed).to(next(model.parameters()))
    with torch.no_grad():
        values = dict(model.named_parameters())
        for name, parameter in ablated.named_parameters():
            if part_of(name) != forget_part(domain):
                parameter.copy_(values[name])
            elif how == "zero":
                parameter.zero_()
        if how == "reinitialise":
            for layer in ablated.modules():
                if isinstance(layer, InputSplit) and forget_part(domain) in layer.weight:
                    layer.weight[forget_part(domain)].zero_()
    return ablated
