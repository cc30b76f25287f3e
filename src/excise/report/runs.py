"""Any evaluated runs as a figure of their own: losses with intervals, trade-off curves, attacks, all else that was measured of
them as tables, configurations, samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from excise.config import to_dict
from excise.evals.figure import LEARNED, Estimate, FigureResults, Panel, Plot, Point, RunLine, Series, Table
from excise.evals.losses import STAGES, SetLosses
from excise.evals.results import Losses, Results, losses_in, read_results
from excise.evals.tables import TABLES
from excise.files import told_apart
from excise.labels import RETAIN
from excise.report.numbers import estimate
from excise.train.checkpoint import check_seal, latest_checkpoint
from excise.train.run import RunConfig, RunDirectory

HEAD = ("Run", "set", "before ablation", "ablated", "calibrated")
DRAWN = ("losses", "tradeoff")
"""Measures that have a place of their own."""
ATTACK_WORDS = {
    "full": "all parameters",
    "lora": "LoRA",
    "remove": "module removed",
    "zero": "module zeroed",
    "reinitialise": "module re-initialised",
}


@dataclass(frozen=True)
class EvaluatedRun:
    """What the files of a run say."""

    name: str
    config: RunConfig
    records: Sequence[Mapping[str, Any]]
    """Of metrics.jsonl."""
    results: Results
    losses: Losses
    altered: Mapping[str, Any]
    """How it was made of another run, by ablation or unlearning; empty where it was trained."""
    but_for_seeds: tuple[str, ...]
    """What runs that differ in their seeds alone have in common."""

    @property
    def method(self) -> str:
        return self.results.provenance.method


def read_run(directory: Path, name: str) -> EvaluatedRun:
    files = RunDirectory(directory)
    if checkpoint := latest_checkpoint(files.checkpoints):
        check_seal(checkpoint)
    config, results = files.config(), read_results(files.results_file)
    return EvaluatedRun(
        name=name,
        config=config,
        records=files.metrics(),
        results=results,
        losses=losses_in(results),
        altered=files.alterations(),
        but_for_seeds=files.but_for_seeds,
    )


def read_runs(directories: Sequence[Path]) -> list[EvaluatedRun]:
    """Runs that can be compared, each once and under a name of its own."""
    places = list({directory.resolve(): directory for directory in directories}.values())
    runs = [read_run(directory, name) for directory, name in zip(places, told_apart(places), strict=True)]
    _check_tokenizers(places, runs)
    return runs


def _check_tokenizers(directories: Sequence[Path], runs: Sequence[EvaluatedRun]) -> None:
    for directory, run in zip(directories, runs, strict=True):
        if run.results.provenance.tokenizer_sha256 != runs[0].results.provenance.tokenizer_sha256:
            raise ValueError(
                f"{directories[0]} and {directory} have different tokenizers, so that their losses per token cannot be compared; "
                "report on them apart"
            )


CAPTION = "In square brackets: 95 % intervals over test documents. Stars mark the end of a training."


def _caption(runs: Sequence[EvaluatedRun]) -> str:
    """What the figure shows, which runs are doubtful, and whether all were measured on the same documents."""
    by_documents: dict[str, list[str]] = {}
    for run in runs:
        by_documents.setdefault(run.results.provenance.evaluated_on_sha256, []).append(run.name)
    told = [CAPTION, *(f"Of {run.name}, {run.losses.doubt}." for run in runs if run.losses.doubt)]
    if len(by_documents) > 1:
        groups = " and of ".join(", ".join(names) for names in by_documents.values())
        told.append(f"The test documents of {groups} differ, and with them the losses.")
    return " ".join(told)


def runs_figure(directories: Sequence[Path]) -> FigureResults:
    """All runs side by side."""
    runs = read_runs(directories)
    lines = [_line(run) for run in runs]
    return FigureResults(
        name="runs",
        title="What was measured",
        section="",
        scale=None,
        caption=_caption(runs),
        panels=[*_tradeoffs(runs), *_attacks(runs), _losses_table(runs), *_over_seeds(runs), *_measured(runs)],
        claims=(),
        runs=lines,
        pipeline_check_only=any(
            run.method == "no_filter"
            and line.first_loss
            and line.last_loss
            and line.last_loss > LEARNED * line.first_loss
            for run, line in zip(runs, lines, strict=True)
        ),
        configurations={run.name: {**to_dict(run.config), **run.altered} for run in runs},
        samples=[sample for run in runs for sample in _samples(run)],
    )


def _line(run: EvaluatedRun) -> RunLine:
    of, logged = run.results.provenance, [record["loss"] for record in run.records if "loss" in record]
    return RunLine(
        name=run.name,
        steps=of.step,
        tokens=of.tokens,
        parameters=of.parameters,
        seed=of.seed,
        first_loss=logged[0] if logged else None,
        last_loss=logged[-1] if logged else None,
        checkpoint_sha256=of.checkpoint_sha256,
    )


def _tradeoffs(runs: Sequence[EvaluatedRun]) -> list[Panel]:
    """Calibrated loss on each domain over that on the retain data, during training and at its end."""
    domains = dict.fromkeys(domain for run in runs for domain in run.config.routing.domains)
    return [
        Plot(
            f"What is left of {domain}",
            "Calibrated retain loss (lower: better kept)",
            f"Calibrated {domain} loss (higher: more removed)",
            [_curve(run, domain) for run in runs if domain in run.losses.sets],
        )
        for domain in domains
    ]


def _curve(run: EvaluatedRun, domain: str) -> Series:
    end, sets = run.results.provenance.step, run.losses.sets
    followed = [record for record in run.records if "losses" in record and record["step"] < end]
    points = [
        Point(
            Estimate(record["losses"][RETAIN]["calibrated"]),
            Estimate(record["losses"][domain]["calibrated"]),
            f"{record['step'] / end:.0%} of training",
        )
        for record in followed
        if domain in record["losses"]
    ]
    last = Point(_of_stage(sets[RETAIN], "calibrated"), _of_stage(sets[domain], "calibrated"))
    return Series(run.method, run.name, [*points, last], star=True)


def _of_stage(losses: SetLosses, stage: str) -> Estimate:
    return Estimate(getattr(losses, stage), *losses.intervals[stage])


def _losses_table(runs: Sequence[EvaluatedRun]) -> Table:
    rows = [
        [run.name, name, *(estimate(_of_stage(losses, stage)) for stage in STAGES)]
        for run in runs
        for name, losses in run.losses.sets.items()
    ]
    return Table("Loss per token", HEAD, rows)


def _over_seeds(runs: Sequence[EvaluatedRun]) -> list[Panel]:
    """Mean and standard deviation over runs that differ only in their seeds."""
    groups: dict[tuple[str, ...], list[EvaluatedRun]] = {}
    for run in runs:
        groups.setdefault(run.but_for_seeds, []).append(run)
    rows = [
        [", ".join(run.name for run in group), name, *(_mean(group, name, stage) for stage in STAGES)]
        for group in groups.values()
        if len(group) > 1
        for name in group[0].losses.sets
    ]
    return [Table("Mean ± standard deviation over seeds", HEAD, rows)] if rows else []


def _mean(group: Sequence[EvaluatedRun], name: str, stage: str) -> str:
    values = [getattr(run.losses.sets[name], stage) for run in group]
    return f"{mean(values):.3f} ± {stdev(values):.3f}"


def _attacks(runs: Sequence[EvaluatedRun]) -> list[Panel]:
    """The strongest attack of each kind on each run, by domain."""
    attacks = [(run, attack) for run in runs for attack in run.results.measures.get("relearning", ())]
    return [
        _attack_plot(domain, [(run, attack) for run, attack in attacks if attack["domain"] == domain], runs)
        for domain in dict.fromkeys(attack["domain"] for _, attack in attacks)
    ]


def _attack_plot(
    domain: str, attacks: Sequence[tuple[EvaluatedRun, Mapping[str, Any]]], runs: Sequence[EvaluatedRun]
) -> Plot:
    return Plot(
        f"Relearning {domain}",
        "fine-tuning steps",
        f"{domain} loss (higher: more removed)",
        [Series(run.method, f"{run.name}, {_kind(attack)}", _strongest(attack, domain)) for run, attack in attacks],
        levels={_baseline(attack, runs): attack["baseline_loss"] for _, attack in attacks},
    )


def _baseline(attack: Mapping[str, Any], runs: Sequence[EvaluatedRun]) -> str:
    """The name of the run whose loss an attack tries to reach, as it is called here where it is one of these."""
    of = attack["baseline"]
    sources = ((run, run.results.provenance) for run in runs)
    same = (
        run.name for run, its in sources if (its.run, its.checkpoint_sha256) == (of["run"], of.get("checkpoint_sha256"))
    )
    return next(same, of["run"])


def _kind(attack: Mapping[str, Any]) -> str:
    """What the attacker did, in a few words."""
    n, words = attack["config"]["n_documents"], [ATTACK_WORDS[attack["config"]["method"]]]
    if n:
        words.append(f"{n} documents")
    if attack["ablation"] in ATTACK_WORDS:
        words.append(ATTACK_WORDS[attack["ablation"]])
    return ", ".join(words)


def _strongest(attack: Mapping[str, Any], domain: str) -> list[Point]:
    (found,) = [tried for tried in attack["attacks"] if tried["learning_rate"] == attack["strongest"]]
    return [Point(Estimate(point["step"]), Estimate(point["losses"][domain])) for point in found["points"]]


def _measured(runs: Sequence[EvaluatedRun]) -> list[Panel]:
    """All other measures, one table for all runs that have it."""
    found: dict[tuple[str, tuple[str, ...]], list[list[str | float]]] = {}
    for run in runs:
        for name in (name for name in TABLES if name in run.results.measures and name not in DRAWN):
            for table in TABLES[name](run.results.measures[name]):
                found.setdefault((table.title, ("Run", *table.header)), []).extend(
                    [run.name, *row] for row in table.rows
                )
    return [Table(title, header, rows) for (title, header), rows in found.items()]


def _samples(run: EvaluatedRun) -> list[dict[str, str]]:
    def texts(written: Mapping[str, str]) -> dict[str, str]:
        return {
            f"{run.name}, {model}" if model in ("full", "ablated") else model: text for model, text in written.items()
        }

    return [{"prompt": one["prompt"], **texts(one["written"])} for one in run.results.measures.get("samples", ())]
