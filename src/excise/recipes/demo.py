"""The demo: four small bilingual models, and what is left of Spanish in each (paper, figure 4a, in three minutes).

docs/method.md says why the settings are what they are.

English is retain, Spanish is forget, and a tenth of the Spanish is not discovered by the simulated classifier. Every
method trains one epoch on the documents left to it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from excise.config import override
from excise.data.dataset import DataConfig, load_data
from excise.data.loader import BatchConfig
from excise.data.tokens import Tokenizer, story_tokenizer
from excise.evals.losses import AblationLosses
from excise.evals.results import Claim, Provenance, RunResults, recovered, write_json
from excise.evals.run import evaluate_run
from excise.evals.samples import continue_text
from excise.evals.tradeoff import Tradeoff
from excise.labels import RETAIN
from excise.model.ablation import ablate
from excise.model.gpt import GPT, GPTConfig
from excise.routing.rules import RoutingConfig
from excise.train.loop import Listener, train
from excise.train.release import load_run
from excise.train.run import RunConfig, RunDirectory, TrainConfig

DOMAIN = "spanish"
EVALUATIONS = 3
"""Points of each curve, the final one included."""
PROMPTS = {
    "english": ("One day, a little girl", "It was raining, and", '"I am not afraid," said'),
    "spanish": ("Un día, una niña pequeña", "Estaba lloviendo y", "—No tengo miedo —dijo"),
}


def demo_run() -> RunConfig:
    """SGTM at the size of the demo; `excise train demo` runs it alone."""
    return RunConfig(
        data=DataConfig(n_stories=1500, n_test_stories=300, undiscovered_share=0.1, calibration_share=2 / 3),
        model=GPTConfig(vocabulary_size=4096, context=256, n_layers=2, d_model=96, n_heads=4, d_mlp=384),
        routing=RoutingConfig(
            domains=(DOMAIN,),
            forget_heads=1,
            forget_units=64,
            forget_tokens=0.9,
            forget_weight=0.15,
            embeddings="retain",
            norms="retain",
        ),
        batch=BatchConfig(context=256, rows_per_step=4, rows_per_micro_batch=4),
        train=TrainConfig(
            learning_rate=2e-3,
            warmup_steps=200,
            clip_norm=1.0,
            log_every=50,
            evaluations=EVALUATIONS,
        ),
    )


def demo_runs(sgtm: RunConfig) -> dict[str, RunConfig]:
    """The four methods on the same stories with the same labels."""
    plain = override(sgtm, {"routing.rule": "none", "routing.forget_weight": 1.0, "routing.forget_tokens": 0.0})
    return {
        "no_filter": plain,
        "data_filter": override(plain, {"data.filter": "weak"}),
        "sgtm": sgtm,
        "perfect_filter": override(plain, {"data.filter": "perfect"}),
    }


@dataclass(frozen=True)
class CurvePoint:
    """Calibrated losses at some point of training."""

    step: int
    tokens: int
    share: float
    """Of the training that is done."""
    retain: float
    forget: float


@dataclass(frozen=True)
class RunSummary:
    steps: int
    tokens: int
    seconds: float
    parameters: int


@dataclass(frozen=True)
class Sample:
    """One opening, continued by the model of SGTM before and after its module is removed."""

    language: str
    prompt: str
    full: str
    ablated: str


@dataclass(frozen=True)
class DemoResults:
    losses: Mapping[str, Mapping[str, AblationLosses]]
    """By method, then `retain` or `forget`."""
    recovered: float
    claims: Sequence[Claim]
    curves: Mapping[str, Sequence[CurvePoint]]
    runs: Mapping[str, RunSummary]
    samples: Sequence[Sample]
    configuration: Mapping[str, Any]


def run_demo(directory: Path, sgtm: RunConfig, listeners: Callable[[str], Sequence[Listener]]) -> DemoResults:
    """Train and evaluate the four methods, and write results.json; what is done already is not done again."""
    results: dict[str, RunResults] = {}
    curves: dict[str, list[CurvePoint]] = {}
    for method, run in demo_runs(sgtm).items():
        results[method], curves[method] = _train_and_evaluate(directory / "runs" / method, run, listeners(method))
    model, _ = load_run(directory / "runs" / "sgtm")
    losses = {method: _by_role(result.losses.sets) for method, result in results.items()}
    demo_results = DemoResults(
        losses=losses,
        recovered=_recovered(losses),
        claims=demo_claims(losses),
        curves=curves,
        runs={method: _summary(result.provenance) for method, result in results.items()},
        samples=demo_samples(model, story_tokenizer()),
        configuration={
            "excise": version("excise"),
            "torch": version("torch"),
            "seed": sgtm.train.seed,
            "undiscovered_share": sgtm.data.undiscovered_share,
            "n_stories": sgtm.data.n_stories,
            "forget_weight": sgtm.routing.forget_weight,
            "forget_tokens": sgtm.routing.forget_tokens,
        },
    )
    write_json(demo_results, directory / "results.json")
    return demo_results


def _train_and_evaluate(
    directory: Path, run: RunConfig, listeners: Sequence[Listener]
) -> tuple[RunResults, list[CurvePoint]]:
    data = load_data(run.data, run.routing.domains)
    train(run, data, directory, [Tradeoff(run, data, at_end=False), *listeners])
    results = evaluate_run(directory, data)
    return results, _curve(directory, results)


def _curve(directory: Path, results: RunResults) -> list[CurvePoint]:
    """Calibrated losses during training, and at its end."""
    records = [record for record in RunDirectory(directory).metrics() if "losses" in record]
    end = results.provenance
    last = {"step": end.step, "tokens": end.tokens, "losses": asdict(results.losses)["sets"]}
    return [
        CurvePoint(
            step=record["step"],
            tokens=record["tokens"],
            share=record["step"] / end.step,
            retain=record["losses"][RETAIN]["calibrated"],
            forget=record["losses"][DOMAIN]["calibrated"],
        )
        for record in [*records, last]
    ]


def _by_role(losses: Mapping[str, AblationLosses]) -> dict[str, AblationLosses]:
    def plain(of_set: AblationLosses) -> AblationLosses:
        return AblationLosses(of_set.before, of_set.ablated, of_set.calibrated)

    return {"retain": plain(losses[RETAIN]), "forget": plain(losses[DOMAIN])}


def _summary(run: Provenance) -> RunSummary:
    return RunSummary(run.step, run.tokens, run.seconds, run.parameters)


def _recovered(losses: Mapping[str, Mapping[str, AblationLosses]]) -> float:
    forget = {method: by_role["forget"].calibrated for method, by_role in losses.items()}
    return recovered(forget["sgtm"], data_filter=forget["data_filter"], perfect_filter=forget["perfect_filter"])


def demo_claims(losses: Mapping[str, Mapping[str, AblationLosses]]) -> list[Claim]:
    """What the demo sets out to show; each can fail."""
    calibrated = {(method, role): loss.calibrated for method, roles in losses.items() for role, loss in roles.items()}
    before = {method: roles["forget"].before for method, roles in losses.items()}
    return [
        Claim.at_least(
            "share of the perfect filter's forgetting recovered by SGTM with token vectors", _recovered(losses), 0.8
        ),
        Claim.at_most(
            "English loss of SGTM with token vectors relative to the data filter's",
            calibrated["sgtm", "retain"] / calibrated["data_filter", "retain"],
            1.05,
        ),
        Claim.at_most(
            "Spanish loss with no filter relative to the perfect filter's",
            calibrated["no_filter", "forget"] / calibrated["perfect_filter", "forget"],
            0.6,
        ),
        Claim.at_most(
            "Spanish loss of SGTM with token vectors before ablation, against the midpoint of no filter and perfect filter",
            before["sgtm"],
            (before["no_filter"] + before["perfect_filter"]) / 2,
        ),
    ]


def demo_samples(model: GPT, tokenizer: Tokenizer) -> list[Sample]:
    """The same openings, continued by the full and by the ablated model."""
    ablated = ablate(model, DOMAIN)
    return [
        Sample(
            language,
            prompt,
            continue_text(model, tokenizer, prompt, n_tokens=40, temperature=0.5),
            continue_text(ablated, tokenizer, prompt, n_tokens=40, temperature=0.5),
        )
        for language, prompts in PROMPTS.items()
        for prompt in prompts
    ]
