"""The paper's runs: models, batches and rates of its two hyperparameter tables (appendices I and J).

`data.source` must name a folder with the documents, whose test split is evaluated whole. Learning rates are the tables'.
"""

from collections.abc import Callable
from functools import partial

from excise.data.dataset import DataConfig
from excise.data.loader import BatchConfig
from excise.model.gpt import GPTConfig
from excise.routing.rules import RoutingConfig
from excise.train.run import RunConfig, TrainConfig
from excise.train.schedule import epochs, steps

TINYSTORIES = {
    "8m": GPTConfig(n_layers=6, d_model=128, d_mlp=512),
    "18m": GPTConfig(n_layers=6, d_model=256, d_mlp=1024),
    "34m": GPTConfig(n_layers=8, d_model=384, d_mlp=1536),
    "64m": GPTConfig(n_layers=12, d_model=512, d_mlp=2048),
}
WIKIPEDIA = {
    "34m": GPTConfig(context=1024, n_layers=8, d_model=384, d_mlp=1536),
    "64m": GPTConfig(context=1024, n_layers=12, d_model=512, d_mlp=2048),
    "125m": GPTConfig(context=1024, n_layers=12, d_model=768, d_mlp=3072),
    "254m": GPTConfig(context=1024, n_layers=16, d_model=1024, d_mlp=4096),
}
TINYSTORIES_STEPS = {"8m": 3989, "18m": 9204, "34m": 17484, "64m": 33120}
WIKIPEDIA_STEPS = {"34m": 5169, "64m": 4887, "125m": 9491, "254m": 9689}
WIKIPEDIA_ROWS = {"34m": 128, "64m": 256, "125m": 256, "254m": 512}


def tinystories(size: str) -> RunConfig:
    """Removing Spanish from a bilingual model (section 4): a quarter of the English is retain, embeddings are joint."""
    return RunConfig(
        data=DataConfig(source="tinystories", retain_share=0.25, n_test_documents=0),
        model=TINYSTORIES[size],
        routing=RoutingConfig(domains=("spanish",), embeddings="joint"),
        batch=BatchConfig(context=512, rows_per_step=128, rows_per_micro_batch=128, packing="padded"),
        train=TrainConfig(
            # The paper's steps as a share of its one epoch at 64M: a filtered corpus takes as many fewer.
            budget=epochs(TINYSTORIES_STEPS[size] / TINYSTORIES_STEPS["64m"]),
            learning_rate=5e-3,
            warmup_steps=500 if size == "8m" else 1000,
        ),
    )


def wikipedia(size: str) -> RunConfig:
    """Removing biology from a model of Wikipedia (section 5): a tenth of the rest is retain, embeddings are retain."""
    return RunConfig(
        data=DataConfig(source="wikipedia", retain_share=0.1, adjacent_retain_share=0.1, n_test_documents=0),
        model=WIKIPEDIA[size],
        routing=RoutingConfig(domains=("biology",), embeddings="retain"),
        batch=BatchConfig(context=1024, rows_per_step=WIKIPEDIA_ROWS[size], rows_per_micro_batch=64),
        train=TrainConfig(
            budget=steps(WIKIPEDIA_STEPS[size]),
            learning_rate=6e-3,
            warmup_steps=1000 if size in ("125m", "254m") else 500,
        ),
    )


PAPER_RECIPES: dict[str, Callable[[], RunConfig]] = {
    **{f"tinystories_{size}": partial(tinystories, size) for size in TINYSTORIES},
    **{f"wikipedia_{size}": partial(wikipedia, size) for size in WIKIPEDIA},
}
