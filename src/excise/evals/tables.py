"""What was measured of a run, as tables of words and numbers: for the terminal and for the report."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from excise.evals.figure import Table
from excise.labels import GROUPS, RETAIN

Tables = Sequence[Table]
STAGES = ("before", "ablated", "calibrated")


def number(value: float | None, low: float | None = None, high: float | None = None, *, digits: int = 3) -> str:
    """A number with its interval, where it has one."""
    if value is None:
        return "never"
    text = f"{value:.{digits}f}"
    if low is None and high is None:
        return text
    ends = ["..." if end is None else f"{end:.{digits}f}" for end in (low, high)]
    return f"{text} [{ends[0]}, {ends[1]}]"


def losses(found: Mapping[str, Any]) -> Tables:
    def rows(of: Mapping[str, Any]) -> list[list[str]]:
        return [
            [name, *(number(losses[stage], *losses["intervals"][stage]) for stage in STAGES), f"{losses['n_tokens']:,}"]
            for name, losses in of.items()
        ]

    columns = ("set", "before ablation", "ablated", "calibrated", "tokens")
    sets = Table("Loss per token, with 95 % intervals over documents", columns, rows(found["sets"]))
    if set(found["categories"]) == set(found["sets"]) or len(found["categories"]) <= len(found["sets"]):
        return [sets]
    return [
        sets,
        Table("By category", ("category", *columns[1:]), rows(found["categories"])),
        Table("Mean over categories", columns, rows(found["category_means"])),
    ]


def comparison(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """The calibrated retain losses of runs, and all their losses on their domains, from the `losses` of each."""
    rows = [
        [run, number(of["sets"][RETAIN]["calibrated"]), domain, *(number(losses[stage]) for stage in STAGES)]
        for run, of in found.items()
        for domain, losses in of["sets"].items()
        if domain not in (RETAIN, *GROUPS)
    ]
    columns = ("run (method)", f"{RETAIN}, calibrated", "domain", "before ablation", "ablated", "calibrated")
    return Table("Loss per token", columns, rows)


def tradeoff(found: Sequence[Mapping[str, Any]]) -> Tables:
    sets = list(found[0]["losses"])
    rows = [
        [f"{point['share']:.0%}", f"{point['step']:,}", f"{point['compute']:.3g}"]
        + [number(point["losses"][name]["calibrated"]) for name in sets]
        for point in found
    ]
    return [Table("Calibrated losses during training", ("share", "step", "FLOPs", *sets), rows)]


def gradient_norms(found: Mapping[str, Any]) -> Tables:
    norms, cosines = found["relative_gradient_norm"], found["cosine"]
    rows = [
        [name, part, *(f"{of_part['quantiles'][q]:.3g}" for q in ("0.05", "0.5", "0.95"))]
        + [f"{of_domain['quantiles']['0.5']:.3f}" for of_domain in cosines[name][part].values()]
        for name, parts in norms.items()
        for part, of_part in parts.items()
    ]
    domains = list(next(iter(next(iter(cosines.values())).values())))
    columns = ("data", "parameters", "5 %", "median", "95 %", *(f"cosine with {domain}" for domain in domains))
    return [Table("Relative gradient norms per document", columns, rows)]


def token_losses(found: Mapping[str, Any]) -> Tables:
    def rows(stage: str) -> list[list[str]]:
        return [
            [
                name,
                number(shift["shift"], *shift["shift_interval"]),
                number(shift["median_shift"]),
                number(shift["trimmed_shift"]["0.1"]),
                number(shift["risen"], *shift["risen_interval"]),
                "yes" if shift["broad"] else "no",
            ]
            for name, shift in found[stage].items()
        ]

    columns = ("set", "rise of the mean", "of the median", "of the trimmed mean", "share risen", "broad")
    against = found["against"]["run"]
    return [
        Table(f"Losses token by token, {stage}, against {against}", columns, rows(stage))
        for stage in ("ablated", "calibrated")
    ]


def cross_domain(found: Mapping[str, Any]) -> Tables:
    sets = list(found["rows"][0]["losses"])
    rows = [
        [" + ".join(row["removed"]) or "nothing", *(number(row["losses"][s]) for s in sets)] for row in found["rows"]
    ]
    return [Table("Loss on each set, by what is removed", ("removed", *sets), rows)]


def multiple_choice(found: Mapping[str, Any]) -> Tables:
    rows = [
        [
            model,
            of["category"] or "all",
            of["score"],
            number(of["accuracy"], of["low"], of["high"]),
            f"{of['chance']:.3f}",
            str(of["n_questions"]),
        ]
        for model, answers in found["models"].items()
        for of in answers
    ]
    return [Table("Answers", ("model", "category", "score", "accuracy", "chance", "questions"), rows)]


def leakage(found: Mapping[str, Any]) -> Tables:
    rows = [
        [
            domain,
            number(of["leakage"], of["low"], of["high"], digits=4),
            f"{of['equivalent_tokens']:,.0f}",
            f"{of['undiscovered_tokens']:,}",
            _bounds(of),
        ]
        for domain, of in found["domains"].items()
    ]
    return [Table("Leakage", ("domain", "leakage", "equivalent tokens", "undiscovered tokens", ""), rows)]


def _bounds(of: Mapping[str, Any]) -> str:
    """What the reader must know of a leakage that is not between two points of the curve."""
    notes = {
        "censored: above the zero-token loss": of["censored"],
        "at least: beyond the curve": of["lower_bound"],
        "at most: before its first point": of.get("upper_bound", False),  # which older results lack
        "interval over documents only, not seeds": not of["counts_seeds"],
    }
    return "; ".join(note for note, holds in notes.items() if holds)


def compute_penalty(found: Mapping[str, Any]) -> Tables:
    def percent(of: Mapping[str, Any]) -> str:
        low, high = (None if end is None else 100 * end for end in (of["low"], of["high"]))
        return number(100 * of["compute_penalty"], low, high, digits=1)

    rows = [[name, percent(of), percent(found["calibrated"][name])] for name, of in found["before"].items()]
    return [Table("Compute penalty, %", ("set", "before ablation", "ablated and calibrated"), rows)]


MODULES = {"reinitialise": "new", "zero": "zeroed", "remove": "removed"}
"""What became of the module before an attack."""


def relearning(found: Sequence[Mapping[str, Any]]) -> Tables:
    rows = [
        [
            attack["config"]["method"],
            str(attack["config"]["n_documents"] or "all"),
            MODULES.get(attack["ablation"], attack["ablation"]),
            f"{attack['strongest']:g}{' (edge)' if attack['at_edge'] else ''}",
            number(attack["attacks"][0]["points"][0]["losses"][attack["domain"]]),
            number(attack["lowest_loss"]),
            f"{attack['lowest_at']:,}",
            number(attack["baseline_loss"]),
            "never" if attack["relearning_steps"] is None else f"{attack['relearning_steps']:,}",
        ]
        for attack in found
    ]
    columns = ("attack", "documents", "module", "rate", "loss at first", "lowest", "at step", "goal", "steps to it")
    return [Table(f"Relearning {found[0]['domain']}, the strongest attack of each kind", columns, rows)]


def in_context(found: Mapping[str, Any]) -> Tables:
    rows = [
        [str(forget["prefix_tokens"]), *(number(of["loss"], *of["loss_interval"]) for of in (forget, retain))]
        for forget, retain in zip(found["forget"], found["retain"], strict=True)
    ]
    return [Table("Forget loss with text in the context", ("tokens", "forget text", "retain text"), rows)]


TABLES: Mapping[str, Callable[[Any], Tables]] = {
    "losses": losses,
    "tradeoff": tradeoff,
    "gradient_norms": gradient_norms,
    "token_losses": token_losses,
    "cross_domain": cross_domain,
    "multiple_choice": multiple_choice,
    "leakage": leakage,
    "compute_penalty": compute_penalty,
    "relearning": relearning,
    "in_context": in_context,
}
"""By the name of the measure, from what stands in results.json."""
