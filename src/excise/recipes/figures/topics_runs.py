"""The runs on Wikipedia at three scales (paper, section 5 and appendices A to C, E, H and J): one subject goes.

All methods train the same number of steps on what is left to them, four epochs at most at the small scale. A run without
modules is written in one way only, whatever figure asks for it, so that runs are shared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from excise.baselines.rmu import RMUConfig
from excise.baselines.unlearning import UnlearningConfig
from excise.config import override
from excise.data import topics
from excise.data.dataset import DataConfig
from excise.data.loader import BatchConfig
from excise.data.wikipedia import GROUPS
from excise.evals.attacks import attack_for
from excise.evals.figure import Scale
from excise.evals.relearning import AttackConfig
from excise.model.gpt import GPTConfig
from excise.recipes.figures.bilingual_runs import ROUTED_BLOCKS, SIZES_ROWS, WARMUP, in_batches, parameters_of
from excise.recipes.figures.planned import Sources
from excise.recipes.paper import WIKIPEDIA, wikipedia
from excise.routing.rules import RoutingConfig, RuleName
from excise.train.run import RunConfig, TrainConfig
from excise.train.schedule import steps

Filter = Literal["none", "weak", "strict"]
EVALUATIONS: Mapping[Scale, int] = {"smoke": 4, "small": 5, "paper": 20}
"""Points of a trade-off curve."""
RATE: Mapping[Scale, float] = {"smoke": 4e-3, "small": 1e-2, "paper": 6e-3}
"""Of all methods: at `small`, what a search found for each when biology is removed (`results/small/rates.json`)."""
SIZES_RATE = 5e-3
"""At `small`, of the models of the scaling laws, in smaller steps: what a search found for each method with the largest."""
RETAIN_SHARE = 0.1
STEPS: Mapping[str, int] = {"biology": 850, "military": 650}
"""At the small scale, of 65,536 tokens: four epochs of what the strict filter leaves."""
LARGEST_STEPS: Mapping[str, int] = {"smoke": 500, "small": 3840}
"""Of the largest model of the scaling laws; the others train on as many tokens for each parameter. At the small scale
these are 20 (appendix B) and, again, at most four epochs, in steps of 16,384."""


@dataclass(frozen=True)
class Subjects:
    """Categories that are removed, near to those, and far from them; all others are only trained on."""

    forget: tuple[str, ...]
    adjacent: tuple[str, ...]
    general: tuple[str, ...]


SUBJECTS: Mapping[Scale, Mapping[str, Subjects]] = {
    "smoke": {
        "biology": Subjects(topics.FORGET, topics.ADJACENT, topics.GENERAL),
        "military": Subjects(("military",), ("history",), ("culture", "geography")),
    },
    "small": {
        "biology": Subjects(
            ("biology",),
            ("medicine", "chemistry", "earth_environment"),
            ("geography", "biography", "culture_everyday", "history", "society_religion", "military", "transport"),
        ),
        "military": Subjects(
            ("military",),
            ("history", "biography", "transport"),
            ("geography", "culture_everyday", "society_religion"),
        ),
    },
    "paper": {domain: Subjects(of.forget, of.adjacent, of.general) for domain, of in GROUPS.items()},
}
SIZES: Mapping[Scale, Mapping[str, GPTConfig]] = {
    "smoke": {
        name: GPTConfig(vocabulary_size=4096, context=256, n_layers=n, d_model=d, n_heads=4, d_mlp=4 * d)
        for name, n, d in (("0.1M", 1, 24), ("0.2M", 2, 32), ("0.4M", 2, 64))
    },
    "small": {
        name: GPTConfig(vocabulary_size=4096, context=1024, n_layers=n, d_model=d, n_heads=16, d_mlp=4 * d)
        for name, n, d in (("0.5M", 4, 64), ("0.9M", 4, 96), ("1.8M", 6, 128), ("3.1M", 6, 176))
    },
    "paper": {name.upper(): size for name, size in WIKIPEDIA.items()},
}
"""Models of the scaling laws, the smallest first."""
MODULES: Mapping[Scale, Mapping[str, int]] = {
    "smoke": {"sgtm": 32, "sgtm_joint_down_projection": 64, "sgtm_joint_embeddings": 128},
    "small": {"sgtm": 64, "sgtm_joint_down_projection": 128, "sgtm_joint_embeddings": 256},
    "paper": {"sgtm": 64, "sgtm_joint_down_projection": 128, "sgtm_joint_embeddings": 256},
}
"""MLP units of a module, d_forget, in the configurations of appendix C; all other methods have SGTM's."""
ATTACKS: Mapping[Scale, AttackConfig] = {
    "smoke": AttackConfig(
        steps=40,
        rows_per_step=4,
        rows_per_micro_batch=4,
        context=256,
        learning_rates=(3e-3,),
        warmup=4,
        evaluate_every=4,
    ),
    "small": AttackConfig(
        steps=200,
        rows_per_step=32,
        rows_per_micro_batch=32,
        learning_rates=(1e-3, 3e-3, 1e-2),
        evaluate_every=10,
    ),
    "paper": attack_for(wikipedia("254m")),
}
RMU: Mapping[Scale, UnlearningConfig] = {
    "smoke": UnlearningConfig(steps=50, learning_rate=3e-3, rmu=RMUConfig(alpha=10.0, steering_coefficient=100.0)),
    "small": UnlearningConfig(learning_rate=1e-3),
    "paper": UnlearningConfig(),
}
"""The paper names no learning rate. With its weight of the retain data a model of two blocks unlearns nothing."""
CHECKPOINTS: Mapping[Scale, int] = {"smoke": 50, "small": 25, "paper": 500}
"""Steps between the checkpoints of a run that is to be matched with another (appendix E)."""


def setup(scale: Scale, sources: Sources, domain: str = "biology") -> RunConfig:
    """SGTM as in section 5."""
    made = {"smoke": _smoke, "small": _small, "paper": _paper}[scale](sources, domain)
    of = SUBJECTS[scale][domain]
    changes: dict[str, Any] = {
        "data.labels": "simulated",
        "data.forget": tuple(f"{domain}={category}" for category in of.forget),
        "data.adjacent": of.adjacent,
        "data.general": of.general,
        "data.retain_share": RETAIN_SHARE,
        "data.adjacent_retain_share": RETAIN_SHARE,
        "routing.domains": (domain,),
        "routing.forget_units": MODULES[scale]["sgtm"],
        "train.learning_rate": RATE[scale],
    }
    return override(made, changes)


def _smoke(_: Sources, domain: str) -> RunConfig:
    return RunConfig(
        data=DataConfig(source="topics", n_stories=2400, n_test_stories=240, calibration_share=0.5),
        model=SIZES["smoke"]["0.4M"],
        batch=BatchConfig(context=256, rows_per_step=4, rows_per_micro_batch=4),
        train=TrainConfig(budget=steps(LARGEST_STEPS["smoke"]), warmup_steps=WARMUP, clip_norm=1.0, log_every=50),
    )


def _small(sources: Sources, domain: str) -> RunConfig:
    return RunConfig(
        data=DataConfig(source=sources.topics or "prepared/topics", n_test_documents=0),
        model=GPTConfig(context=1024, n_layers=6, d_model=128, n_heads=16, d_mlp=512),
        routing=RoutingConfig(domains=(domain,)),
        batch=BatchConfig(context=1024, rows_per_step=64, rows_per_micro_batch=64),
        train=TrainConfig(budget=steps(STEPS[domain]), warmup_steps=WARMUP, clip_norm=1.0),
    )


def _paper(sources: Sources, domain: str) -> RunConfig:
    return override(wikipedia("254m"), {"data.source": sources.topics or "wikipedia"})


def of_size(scale: Scale, sources: Sources, size: str) -> RunConfig:
    """SGTM with a model of one of the sizes, which trains on as many tokens as its parameters ask for."""
    base, model = setup(scale, sources), SIZES[scale][size]
    if scale == "paper":
        made = wikipedia(size.lower())
        return replace(
            base, model=model, batch=made.batch, train=replace(made.train, learning_rate=base.train.learning_rate)
        )
    share = parameters_of(model) / parameters_of(list(SIZES[scale].values())[-1])
    n_steps = round(LARGEST_STEPS[scale] * share)
    changes: dict[str, Any] = {"model": model, "train.budget": steps(n_steps)}
    if scale == "small":
        changes["data.source"] = sources.topics_sizes or "prepared/topics-4k"
        base = in_batches(base, SIZES_ROWS, SIZES_RATE)
    return override(base, changes)


def largest(scale: Scale, sources: Sources) -> RunConfig:
    """SGTM with the largest model of the scaling laws."""
    return of_size(scale, sources, list(SIZES[scale])[-1])


def standard(base: RunConfig, which: Filter) -> RunConfig:
    """Training without modules on what a filter leaves."""
    return override(base, {"data.filter": which, "routing.rule": "none", "routing.embeddings": "joint"})


def variant(base: RunConfig, rule: RuleName, scale: Scale) -> RunConfig:
    """A variant of SGTM or a rival (appendices A and C)."""
    changes: dict[str, Any] = {
        "routing.rule": rule,
        "routing.forget_units": MODULES[scale].get(rule, MODULES[scale]["sgtm"]),
    }
    if rule in ("gradient_routing", "sgtm_joint_embeddings"):
        changes["routing.embeddings"] = "joint"
    if rule == "gradient_routing":
        changes["routing.layers"] = tuple(range(max(1, round(ROUTED_BLOCKS * base.model.n_layers))))
    if rule == "sgtm_joint_embeddings":
        changes["data.retain_share"] = 0.25
    return override(base, changes)
