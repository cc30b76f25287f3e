"""What evaluation costs against the forward half of training on the same packed rows.

    python benchmarks/evaluate.py [--recipe tinystories_8m] [--tokens 65536] [--precision bfloat16]

Nothing is compiled or recorded. The forward half of a training step is the blocks and the plain output head with its loss,
with everything kept that a backward pass would need.
"""

import argparse
import json
import time

import numpy as np
import torch

from excise.config import override
from excise.data.packing import IGNORED, Corpus
from excise.evals.losses import batches_of, document_losses
from excise.recipes import RECIPES
from excise.train.loop import autocast, pick_device
from excise.train.run import build_model
from excise.train.step import accumulate


def documents(n_tokens: int, vocabulary_size: int) -> Corpus:
    """Random documents with TinyStories' lengths."""
    random = np.random.default_rng(0)
    lengths = random.gamma(4.0, 55.0, n_tokens // 220).astype(int).clip(8, 512)
    return Corpus.of([random.integers(0, vocabulary_size, n).tolist() for n in lengths], [0] * len(lengths))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="tinystories_8m")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    run = override(RECIPES[args.recipe](), {"train.precision": args.precision})
    device = pick_device(run.train.device)
    model, precision = build_model(run).to(device), autocast(run.train, device)
    corpus, context = documents(args.tokens, run.model.vocabulary_size), run.batch.context
    batches = list(batches_of(model, corpus, context))

    def forward() -> None:
        for batch in batches:
            with precision:
                logits = model(**batch.inputs)
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED
                )
            assert loss.requires_grad

    def evaluate() -> None:
        document_losses(model, corpus, context=context, autocast=precision)

    def train() -> None:
        for batch in batches:
            accumulate(model, [batch], run.routing, precision)

    def seconds(work) -> float:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for work in (forward, evaluate, train):
        work()
    for _ in range(args.rounds):
        taken = {work.__name__: seconds(work) for work in (forward, evaluate, train)}
        ratios = {
            "evaluate / forward": taken["evaluate"] / taken["forward"],
            "forward / train": taken["forward"] / taken["train"],
        }
        print(
            json.dumps({"tokens": corpus.n_predicted} | {k: round(v, 3) for k, v in (taken | ratios).items()}),
            flush=True,
        )


if __name__ == "__main__":
    main()
