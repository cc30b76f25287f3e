"""What a whole run of training does a second, beside the steps that `excise bench` times.

    python benchmarks/whole_run.py [--size 64m] [--rule sgtm] [--steps 200]

Training by a recipe of the paper, compiled and packed, on random documents that fill their rows, in ten epochs. The rate is
that of its second half by its own metrics: with the reading of data, without the writing of records and checkpoint. The first
ten steps have all compilation in them.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from excise.bench import BenchConfig, documents, label_mix
from excise.config import override
from excise.data.dataset import Data
from excise.data.tokens import story_tokenizer
from excise.recipes.paper import TINYSTORIES, tinystories, wikipedia
from excise.train.loop import train
from excise.train.run import RunConfig, RunDirectory
from excise.train.schedule import steps

N_EPOCHS, FEWEST_STEPS = 10, 20


def run_of(size: str, rule: str, n_steps: int) -> RunConfig:
    recipe = tinystories if size in TINYSTORIES else wikipedia
    changes = {
        "routing.rule": rule,
        "batch.packing": "packed",
        "train.budget": steps(n_steps),
        "train.compile": "on",
        # The recipe's rate and warm-up are for thousands of steps.
        "train.learning_rate": 1e-3,
        "train.warmup_steps": 0.5,
        "train.checkpoint_every": 0,
    }
    return override(recipe(size), changes)


def random_data(size: str, run: RunConfig, n_steps: int) -> Data:
    config = BenchConfig(size=size, rows=run.batch.rows_per_step)
    corpus = documents(config, label_mix(config), n_steps // N_EPOCHS)
    return Data(corpus, {}, {}, story_tokenizer(), np.full(len(corpus), -1), "random")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=["8m", "64m", "125m", "254m"], default="64m")
    parser.add_argument("--rule", choices=["none", "sgtm"], default="sgtm")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    if args.steps < FEWEST_STEPS:
        parser.error(f"--steps {args.steps} leaves no second half after the first ten; use at least {FEWEST_STEPS}")
    run = run_of(args.size, args.rule, args.steps)
    data = random_data(args.size, run, args.steps)
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        train(run, data, Path(directory) / "run")
        whole = time.perf_counter() - start
        first, *_, last = records = RunDirectory(Path(directory) / "run").metrics()
    middle = records[len(records) // 2 - 1]
    rate = (last["tokens"] - middle["tokens"]) / (last["seconds"] - middle["seconds"])
    print(
        f"{args.size}, {args.rule}: {rate:,.0f} tokens/s from step {middle['step']} to {last['step']}; "
        f"the first {first['step']} steps took {first['seconds']:.1f} s, all with the checkpoint {whole:.1f} s"
    )


if __name__ == "__main__":
    main()
