"""Unlearning after training: the baselines that start from the model with no filter (paper, section 5.3, appendix J.2).

There is no dropout and no weight decay, so that nothing moves a parameter but the loss.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Final, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from excise import config as configs
from excise.baselines.gradient_difference import gradient_difference_loss
from excise.baselines.models import LanguageModel, language_model
from excise.baselines.npo import NPOConfig, npo_loss
from excise.baselines.rmu import RMUConfig, rmu_loss, rmu_parameters
from excise.baselines.token_reset import reset_tokens
from excise.data.dataset import true_sets, with_true_labels
from excise.data.own_tokens import own_tokens
from excise.data.packing import Batch, Corpus, collate, truncate
from excise.evals.run import own_documents
from excise.files import make_folder, write_whole
from excise.labels import nearest
from excise.train.checkpoint import checkpoint_at, save_checkpoint
from excise.train.release import ablation_file, load_run
from excise.train.run import RunConfig, RunDirectory
from excise.train.step import Diverged

M = TypeVar("M", bound=nn.Module)
Listener = Callable[[int, float], object]
"""Called with the number of steps done and the loss of the last."""


@dataclass(frozen=True, kw_only=True)
class UnlearningConfig:
    """How a model unlearns; steps, batch size and `rmu` are the paper's table."""

    method: Literal["rmu", "npo", "gradient_difference", "token_reset"] = "rmu"
    domains: tuple[str, ...] = ()
    """What a run unlearns; all of its domains where none is named."""
    steps: int = 250
    batch_size: int = 4
    """Documents a step, of forget and of retain data each."""
    learning_rate: float = 5e-5
    seed: int = 0
    """Of the order of documents, and of RMU's vector."""
    rmu: RMUConfig = field(default_factory=RMUConfig)
    npo: NPOConfig = field(default_factory=NPOConfig)
    token_share: float = 0.9
    """Which tokens `token_reset` takes, which trains nothing: as `routing.forget_tokens`, by the true labels."""

    def __post_init__(self) -> None:
        if self.method not in (known := (*UNLEARNING, TOKEN_RESET)):
            raise ValueError(f"unknown method {self.method!r}; {nearest(self.method, known)}")
        if not 0.5 <= self.token_share < 1:
            raise ValueError(f"token_share={self.token_share:g} must be from 0.5 to below 1")
        for name, least in (("steps", 0), ("batch_size", 1), ("learning_rate", 0), ("seed", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be a number from {least} up")


UNLEARNING: Mapping[str, Callable[[LanguageModel, LanguageModel, Batch, Batch, UnlearningConfig], Tensor]] = {
    "rmu": lambda model, reference, forget, retain, c: rmu_loss(model, reference, forget, retain, c.rmu, c.seed),
    "npo": lambda model, reference, forget, retain, c: npo_loss(model, reference, forget, retain, c.npo),
    "gradient_difference": lambda model, _, forget, retain, __: gradient_difference_loss(model, forget, retain),
}
"""The loss of each method that trains, of the model, the model as it was, forget data and retain data."""
TOKEN_RESET: Final = "token_reset"


def unlearn(
    model: M, forget: Corpus, retain: Corpus, config: UnlearningConfig, context: int, listener: Listener | None = None
) -> M:
    """A copy of the model that has unlearned the forget data; of each document the first `context` pairs count."""
    if config.method not in UNLEARNING:
        raise ValueError(f"{config.method} trains nothing and is for runs; use unlearn_run, or {', '.join(UNLEARNING)}")
    unlearned = copy.deepcopy(model).eval().requires_grad_()
    updated, reference = language_model(unlearned), language_model(copy.deepcopy(model).eval())
    config = replace(config, rmu=config.rmu.scaled(len(updated.blocks)))
    parameters = rmu_parameters(updated, config.rmu) if config.method == "rmu" else list(unlearned.parameters())
    optimizer = torch.optim.AdamW(parameters, config.learning_rate, weight_decay=0.0)
    streams = [document_batches(corpus, context, config, number) for number, corpus in enumerate((forget, retain))]
    for step in range(1, config.steps + 1):
        forget_batch, retain_batch = (next(stream).to(parameters[0].device) for stream in streams)
        loss = UNLEARNING[config.method](updated, reference, forget_batch, retain_batch, config)
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(step, value, f"try a lower learning_rate for {config.method}")
        unlearned.zero_grad()
        loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
        optimizer.step()
        if listener:
            listener(step, value)
    unlearned.zero_grad()
    return unlearned.train(model.training)


def document_batches(corpus: Corpus, context: int, config: UnlearningConfig, stream: int) -> Iterator[Batch]:
    """Endless batches of one document a row, in which each comes once before any comes again."""
    pieces, random = truncate(corpus, context), np.random.default_rng([config.seed, stream])
    if not len(pieces):
        raise ValueError("no document of two tokens or more is left; unlearning needs both forget and retain documents")
    order = (int(piece) for _ in count() for piece in random.permutation(len(pieces)))
    while True:
        drawn = list(islice(order, config.batch_size))
        yield collate(corpus, pieces, [[piece] for piece in drawn], int(pieces.length[drawn].max()))


def unlearn_run(source: Path, target: Path, config: UnlearningConfig, listener: Listener | None = None) -> Path:
    """Write the run that has unlearned, with a file `unlearning.json` that says how, and return its checkpoint."""
    if target.exists() and any(target.iterdir()):
        raise ValueError(f"{target} is not empty; choose another directory")
    run = RunDirectory(source).config()
    domains = config.domains or run.routing.domains
    config = replace(config, domains=domains, rmu=config.rmu.scaled(run.model.n_layers))
    model, done = load_run(source)
    own_documents(RunDirectory(source))  # refuses other data than it was trained on
    if config.method == TOKEN_RESET:
        unlearned = reset_tokens(model, _tokens_of(run, config), run.train.seed)
    else:
        sets = true_sets(run.data, run.routing.domains, domains)
        unlearned = unlearn(model, *sets, config, run.batch.context, listener)
    make_folder(target)
    if ablation_file(source).exists():
        write_whole(ablation_file(target), ablation_file(source).read_bytes())
    files = RunDirectory(target)
    configs.save(config, files.unlearning_file)
    files.keep_same(RunDirectory(source))
    files.note_same_tokens(RunDirectory(source))
    configs.save(run, files.config_file)
    checkpoint = checkpoint_at(files.checkpoints, done.step)
    save_checkpoint(checkpoint, unlearned, None, done, files.sealed())  # last, since without it there is no run
    return checkpoint


def _tokens_of(run: RunConfig, config: UnlearningConfig) -> list[int]:
    """Tokens that mostly the domains use."""
    corpus = with_true_labels(run.data, run.routing.domains, config.domains)
    found = own_tokens(corpus, run.routing.domains, config.token_share, run.model.vocabulary_size)
    for domain in config.domains:
        if domain not in found:
            raise ValueError(f"no token is {domain}'s at token_share={config.token_share:g}; set it lower")
    return [token for domain in config.domains for token in found[domain]]
