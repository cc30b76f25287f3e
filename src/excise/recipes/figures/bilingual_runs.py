"""The runs of the synthetic set-up at three scales (paper, section 4 and appendix I): English stays, Spanish goes.

Every method trains one epoch on the documents left to it. A run without modules is written in one way only, whatever
figure asks for it, so that runs are shared.
"""

from collections.abc import Mapping
from typing import Any

from excise.config import override
from excise.data.dataset import DataConfig
from excise.data.loader import BatchConfig
from excise.evals.figure import Scale
from excise.model.gpt import GPTConfig
from excise.recipes.demo import demo_run
from excise.recipes.figures.planned import Sources
from excise.recipes.paper import TINYSTORIES, TINYSTORIES_STEPS, tinystories
from excise.routing.rules import RoutingConfig
from excise.train.run import RunConfig, TrainConfig
from excise.train.schedule import epochs

DOMAIN = "spanish"
SEEDS: Mapping[Scale, int] = {"smoke": 1, "small": 3, "paper": 3}
"""Of main results."""
FEW_SEEDS: Mapping[Scale, int] = {"smoke": 1, "small": 1, "paper": 3}
"""Of all others."""
EVALUATIONS: Mapping[Scale, int] = {"smoke": 4, "small": 5, "paper": 20}
"""Points of a trade-off curve."""
METHODS = ("no_filter", "data_filter", "small_steps", "perfect_filter", "sgtm", "token_vectors", "gradient_routing")
RATES: Mapping[Scale, Mapping[str, float]] = {
    "smoke": dict.fromkeys(METHODS, 3e-3),
    "small": dict(zip(METHODS, (1e-2, 5e-3, 1e-2, 5e-3, 2.5e-3, 5e-3, 1e-2), strict=True)),
    "paper": dict.fromkeys(METHODS, 5e-3),
}
"""Learning rates by method: one that suits all of them at `smoke`, those that a search found on English and Spanish fiction
(`results/small/rates.json`; Gradient Routing was as good at 5e-3, which a search takes by now), and the paper's."""
SMALL_BATCH_RATES: Mapping[Scale, Mapping[str, float]] = {
    **RATES,
    "small": dict.fromkeys(METHODS, 5e-3) | {"sgtm": 2.5e-3},
}
"""The same in smaller batches."""
SIZES_RATES: Mapping[str, float] = {"no_filter": 2.5e-3, "data_filter": 5e-3, "perfect_filter": 5e-3, "sgtm": 2.5e-3}
"""At `small`, of the models of several sizes, as the search found them for the largest."""
WARMUP = 0.5
"""Share of the steps, for runs that are too short for the paper's 500 and 1,000: after a shorter warm-up losses are higher
and follow chance, and a fixed number would favour the methods that train least."""
SGTM: Mapping[str, Any] = {"embeddings": "joint", "norms": "joint", "forget_weight": 1.0, "forget_tokens": 0.0}
"""The routing of SGTM in section 4."""
ROUTED_BLOCKS = 5 / 8
"""Blocks of Gradient Routing that hold a module, from the first: five of eight, as Cloud et al. had in TinyStories."""
SIZES_VOCABULARY, SIZES_TOKENS = 4096, 35.2e6
"""Tokens of the tokenizer, and of the corpus, for figures about model size at the small scale."""
SIZES_ROWS = 16
"""Of a step there. With 128, 20 tokens for each parameter of the smallest model would be 150 steps; the paper's models take
thousands at every size."""
SIZES: Mapping[Scale, Mapping[str, GPTConfig]] = {
    "smoke": {
        "0.2M": GPTConfig(vocabulary_size=4096, context=256, n_layers=2, d_model=32, n_heads=4, d_mlp=128),
        "0.4M": GPTConfig(vocabulary_size=4096, context=256, n_layers=2, d_model=64, n_heads=4, d_mlp=256),
        "0.7M": demo_run().model,
    },
    "small": {
        name: GPTConfig(vocabulary_size=SIZES_VOCABULARY, n_layers=n, d_model=d, n_heads=16, d_mlp=4 * d)
        for name, n, d in (("0.5M", 4, 64), ("0.9M", 4, 96), ("1.8M", 6, 128), ("3.6M", 6, 192))
    },
    "paper": {name.upper(): size for name, size in TINYSTORIES.items()},
}
"""Models of the figure about size, the smallest first; each has a module of one head and 64 units."""


def setup(scale: Scale, sources: Sources) -> RunConfig:
    """SGTM with perfect labels."""
    made = {"smoke": _smoke, "small": _small, "paper": _paper}[scale](sources)
    return override(made, {"data.labels": "simulated", **{f"routing.{name}": value for name, value in SGTM.items()}})


def _smoke(_: Sources) -> RunConfig:
    changes = {
        "data.n_stories": 500,
        "data.n_test_stories": 200,
        "data.undiscovered_share": 0.0,
        "train.learning_rate": RATES["smoke"]["sgtm"],
        "train.warmup_steps": WARMUP,
        "train.evaluations": 0,
    }
    return override(demo_run(), changes)


def _small(sources: Sources) -> RunConfig:
    return RunConfig(
        data=DataConfig(
            source=sources.bilingual or "bilingual", forget=(f"{DOMAIN}=es",), retain_share=0.25, n_test_documents=0
        ),
        model=GPTConfig(n_layers=6, d_model=128, n_heads=16, d_mlp=512),
        routing=RoutingConfig(domains=(DOMAIN,), forget_heads=1, forget_units=64),
        batch=BatchConfig(context=512, rows_per_step=128, rows_per_micro_batch=128),
        train=TrainConfig(budget=epochs(1), learning_rate=RATES["small"]["sgtm"], warmup_steps=WARMUP, clip_norm=1.0),
    )


def _paper(sources: Sources) -> RunConfig:
    changes = {"data.source": sources.bilingual or "tinystories", "train.learning_rate": RATES["paper"]["sgtm"]}
    return override(tinystories("64m"), changes)


def of_size(scale: Scale, sources: Sources, size: str) -> RunConfig:
    """SGTM with a model of one of the sizes; the paper gives each as many tokens as its parameters ask for."""
    base, model = setup(scale, sources), SIZES[scale][size]
    changes: dict[str, Any] = {"model": model}
    if scale == "small":
        n_tokens = 20 * parameters_of(model)
        source = sources.bilingual_sizes or "bilingual-4k"
        changes |= {"data.source": source, "train.budget": epochs(n_tokens / SIZES_TOKENS)}
        base = in_batches(base, SIZES_ROWS, SIZES_RATES["sgtm"])
    if scale == "paper":
        share = TINYSTORIES_STEPS[size.lower()] / TINYSTORIES_STEPS["64m"]
        changes |= {"train.budget": epochs(share), "train.warmup_steps": 500 if size == "8M" else 1000}
    return override(base, changes)


def in_batches(config: RunConfig, rows: int, rate: float) -> RunConfig:
    """The same run in batches of so many rows, at the rate that suits them."""
    batch = {"batch.rows_per_step": rows, "batch.rows_per_micro_batch": min(rows, config.batch.rows_per_micro_batch)}
    return override(config, {**batch, "train.learning_rate": rate})


def rate_of(config: RunConfig, method: str, scale: Scale) -> float:
    """The rate of a method for a run in the usual batches, in smaller ones, or of several sizes with a tokenizer of their own."""
    usual = setup(scale, Sources())
    if config.model.vocabulary_size != usual.model.vocabulary_size:
        return SIZES_RATES[method]
    has_small = config.batch.rows_per_step < usual.batch.rows_per_step
    return (SMALL_BATCH_RATES if has_small else RATES)[scale][method]


def sgtm(base: RunConfig, undiscovered_share: float, **changes: Any) -> RunConfig:
    return override(base, {"data.undiscovered_share": undiscovered_share, **changes})


def gradient_routing(base: RunConfig, undiscovered_share: float, scale: Scale) -> RunConfig:
    """The variant of Cloud et al.: activation gradients are masked, in some blocks only; embeddings are joint."""
    changes = {
        "routing.rule": "gradient_routing",
        "routing.layers": tuple(range(max(1, round(ROUTED_BLOCKS * base.model.n_layers)))),
        "routing.embeddings": "joint",
        "routing.norms": "joint",
        "routing.forget_weight": 1.0,
        "train.learning_rate": rate_of(base, "gradient_routing", scale),
        "data.undiscovered_share": undiscovered_share,
    }
    return override(base, changes)


def standard(
    base: RunConfig, undiscovered_share: float, scale: Scale, *, false_positive_rate: float = 0.0
) -> RunConfig:
    """Training without modules on what a filter leaves: no filter at a share of 1, a perfect one at 0."""
    name = {0.0: "perfect_filter", 1.0: "no_filter"}.get(undiscovered_share, "data_filter")
    if false_positive_rate:
        name = "data_filter"
    changes: dict[str, Any] = {
        "train.learning_rate": rate_of(base, name, scale),
        "data.filter": {"perfect_filter": "perfect", "no_filter": "none", "data_filter": "weak"}[name],
        "data.undiscovered_share": undiscovered_share if name == "data_filter" else 0.0,
        "data.false_positive_rate": false_positive_rate,
    }
    if not false_positive_rate:  # or else it says how many documents can be false positives
        changes["data.retain_share"] = setup(scale, Sources()).data.retain_share
    plain = {**SGTM, "rule": "none"}
    return override(base, changes | {f"routing.{name}": value for name, value in plain.items()})


def parameters_of(model: GPTConfig) -> int:
    """Parameters of a model of this size, whatever parts they are in."""
    d, m, v = model.d_model, model.d_mlp, model.vocabulary_size
    attention, mlp, norms = 3 * d * d + d * d + d, d * m + m + m * d + d, 4 * d
    return v * d + model.context * d + model.n_layers * (attention + mlp + norms) + 2 * d + v * model.output_bias
