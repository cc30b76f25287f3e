"""Figures as `excise reproduce` writes them, with every kind of panel, intervals, gaps and claims of every verdict."""

import math
from collections.abc import Sequence
from hashlib import sha256

from excise.evals.figure import (
    Bars,
    Estimate,
    FigureResults,
    Heat,
    PaperClaim,
    Plot,
    Point,
    RunLine,
    Series,
    Split,
    Table,
)

LABELS = {
    "sgtm": "SGTM",
    "weak_filter": "Weak filter (biology only)",
    "strict_filter": "Strict filter (biology, medicine, chemistry, earth and environment)",
    "no_filter": "No filter",
}
LONG = "Medicine and health, chemistry, and earth and environment: everything that lies beside biology"


def around(value: float, half: float) -> Estimate:
    return Estimate(value, value - half, value + half)


def run(name: str, seed: int = 0, tokens: int = 35_127_296) -> RunLine:
    return RunLine(
        name=f"{name}-seed-{seed}",
        steps=tokens // 32_768,
        tokens=tokens,
        parameters=8_343_040,
        seed=seed,
        first_loss=9.104,
        last_loss=2.417 + 0.013 * seed,
        checkpoint_sha256=sha256(f"{name}{seed}".encode()).hexdigest(),
    )


def tradeoff(method: str, retain: float, forget: float, n: int = 9) -> Series:
    def point(i: int) -> Point:
        left = (1 - i / n) ** 2
        x, y = retain + 1.4 * left, forget + 1.1 * left
        here = (around(x, 0.03), around(y, 0.09)) if i == n else (Estimate(x), Estimate(y))
        return Point(*here, f"{i / n:.0%}")

    return Series(method, LABELS[method], [point(i) for i in range(1, n + 1)], star=True)


def figure_1() -> FigureResults:
    ends = {"sgtm": (2.31, 4.42), "weak_filter": (2.27, 3.61), "strict_filter": (2.38, 4.11), "no_filter": (2.25, 2.52)}
    panels = [
        Plot(
            f"{where} knowledge",
            f"Retain loss on {where.lower()} articles (lower: better kept)",
            "Forget loss on biology articles (higher: more removed)",
            [tradeoff(method, retain + shift, forget) for method, (retain, forget) in ends.items()],
        )
        for where, shift in (("General", 0.0), ("Adjacent", 0.31))
    ]
    claims = [
        PaperClaim(
            "SGTM has a higher forget loss than weak filtering at equal retain loss",
            "curve above at every point (section 5.2)",
            around(0.71, 0.12),
            "nats",
            True,
            "forget loss of SGTM − that of weak filtering, interpolated at the retain loss of SGTM, 3 seeds",
        ),
        PaperClaim(
            "SGTM has a higher forget loss than strict filtering at equal retain loss",
            "curve above at every point (section 5.2)",
            around(0.06, 0.11),
            "nats",
            None,
        ),
        PaperClaim("SGTM costs at most 6 % of compute", "5 % (section 5.2)", around(17.2, 3.9), "%", False),
    ]
    caption = (
        "Each line is one training, each point a checkpoint; stars mark its end. Up is more biology removed, "
        "left is more of everything else kept, so the upper left corner is best."
    )
    runs = [run(method, seed) for method in ends for seed in range(3)]
    config = {
        method: {
            "train": {"learning_rate": 5e-3 if method == "sgtm" else 3e-3, "steps": 1072, "seeds": [0, 1, 2]},
            "data": {"filter": method, "source": "topics_schools_wikipedia"},
        }
        for method in ends
    }
    samples = [
        {
            "language": "english",
            "prompt": "The cell membrane is",
            "SGTM, full": " a thin layer of fat molecules that surrounds the cell.",
            "SGTM, biology removed": " a kind of stone used by the builders of the church.",
            "Weak filter": " made of fat and is found in animals.",
        }
    ]
    title = "Removing biology: SGTM against data filtering"
    return FigureResults(
        "figure-1", title, "1", "small", caption, panels, claims, runs, False, configurations=config, samples=samples
    )


def figure_2() -> FigureResults:
    split = Split(
        "One block of the 8M model",
        ["W_Q, W_K, W_V", "W_O", "W_1, b_1", "W_2", "b_O, b_2", "norms", "embeddings"],
        {
            "retain": [7, 7, 960, 960, 2, 0, 1],
            "joint": [0, 0, 0, 0, 0, 4, 0],
            "forget/biology": [1, 1, 64, 64, 0, 0, 0],
        },
        ["heads", "heads", "units", "units", "vectors", "vectors", "matrices"],
    )
    return FigureResults(
        "figure-2", "Where the knowledge goes", "3.1", "small", "Drawn from a real model.", [split], [], [], False
    )


def figure_3() -> FigureResults:
    shares = (0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)

    def series(method: str, label: str, start: float, end: float) -> Series:
        points = [Point(Estimate(100 * s), around(start + (end - start) * s**0.5, 0.05 + 0.1 * s)) for s in shares]
        return Series(method, label, points)

    panels = [
        Plot(
            f"({letter}) {name}",
            "Undiscovered share of the forget data (%)",
            f"Calibrated {name.lower()} loss",
            [
                series("sgtm", "SGTM", *ends[0]),
                series("gradient_routing", "Gradient Routing", *ends[1]),
                series("data_filter", "Data filter", *ends[2]),
            ],
            levels={"perfect filter": ends[3][0], "no filter": ends[3][1]},
        )
        for letter, name, ends in (
            ("a", "Retain", ((1.62, 1.60), (1.78, 1.74), (1.60, 1.61), (1.605, 1.6))),
            ("b", "Forget", ((5.61, 2.9), (5.1, 2.4), (5.6, 1.7), (5.62, 1.68))),
        )
    ]
    claim = PaperClaim("SGTM forgets more than the filter at 5 %", "Figure 3b", around(1.42, 0.2), "nats", True)
    runs = [run(method, seed) for method in ("sgtm", "gradient_routing", "data_filter") for seed in range(3)]
    return FigureResults(
        "figure-3",
        "Labels that miss some of the forget data",
        "4.2",
        "small",
        "Bands: 3 seeds.",
        panels,
        [claim],
        runs,
        False,
    )


def figure_4() -> FigureResults:
    def density(method: str, label: str, middle: float) -> Series:
        points = [
            Point(Estimate(10 ** (x / 40)), Estimate(math.exp(-((x / 40 - middle) ** 2) * 8))) for x in range(-160, 41)
        ]
        return Series(method, label, points, markers=False)

    curves = [
        density("sgtm", "Forget data on the module", -0.8),
        density("sgtm", "Forget data on the rest", -2.4),
        density("weak_filter", "Retain data on the module", -3.0),
    ]
    norms = Plot("Gradient norms", "Relative gradient norm", "Density", curves, x_log=True)
    sizes = [
        Point(Estimate(c), around(9.1 * c**-0.03, 0.02), f"{n}M")
        for n, c in ((8, 1.2e17), (18, 8e17), (34, 2.6e18), (64, 1.1e19))
    ]
    law = Plot(
        "Scaling law",
        "Compute in FLOPs",
        "Loss",
        [Series("no_filter", "No filter", sizes, line=False), Series("equal", "Law", sizes, markers=False)],
        x_log=True,
        y_log=True,
    )
    return FigureResults(
        "figure-4", "Gradient norms, and a law of compute", "4.4", "small", "", [norms, law], [], [run("sgtm")], False
    )


def figure_9(check_only: bool = False) -> FigureResults:
    bars: dict[str, Sequence[Estimate | None]] = {
        "sgtm": [around(84.7, 4.1), around(21.3, 3.0), around(5.9, 1.2)],
        "weak_filter": [around(61.0, 5.0), around(2.1, 1.9), around(-1.3, 1.4)],
        "strict_filter": [around(88.2, 3.3), None, Estimate(4.4)],
    }
    labels = {method: LABELS[method] for method in bars}
    panel = Bars("Compute penalty", "Compute lost (%)", ["Biology", LONG, "General knowledge"], bars, labels)
    claim = PaperClaim("Strict filtering loses 94 % of the compute spent on biology", "94 %", None, "%", None)
    held = PaperClaim("SGTM loses more on biology than on general knowledge", "yes", around(78.8, 4.3), "%", True)
    return FigureResults(
        "figure-9",
        "What removal costs in compute",
        "appendix B",
        "smoke" if check_only else "small",
        "Compute that a model without filter would have needed for the same loss.",
        [panel],
        [claim, held],
        [run("sgtm", tokens=655_872)],
        check_only,
    )


def figure_11() -> FigureResults:
    rates = ["0 %", "10 %", "20 %", "40 %"]
    values = [[0.02, -0.01, -0.12, -0.31], [0.011, 0.0, -0.04, None], [0.134, 0.092, 0.05, 0.007]]
    heats = [
        Heat(
            f"{name} loss of SGTM − that of the filter",
            "recall",
            "false positives",
            ["60 %", "80 %", "100 %"],
            rates,
            values,
        )
        for name in ("Retain", "Forget")
    ]
    return FigureResults("figure-11", "Classifiers of every quality", "appendix D", "small", "", heats, [], [], False)


def table_1() -> FigureResults:
    table = Table(
        "Which data update which parameters",
        ["Data", "retain parameters", "joint parameters", "module", "largest change"],
        [["retain", "updated", "updated", "hidden", 0.0], ["forget", "frozen", "updated", "updated", 3.2e-7]],
    )
    claim = PaperClaim("Retain data leave the module alone", "hidden (table 1)", Estimate(0.0), "", True, check=True)
    return FigureResults("table-1", "Which data update what, measured", "3.2", "small", "", [table], [claim], [], False)


def table_5() -> FigureResults:
    rows = [
        [f"STEM.{topic}", topic, 1234 * i + 17, "12.5 %"] for i, topic in enumerate(("Biology", "Chemistry", "Physics"))
    ]
    table = Table("Topics", ["category", "group", "documents", "share"], rows)
    return FigureResults("table-5", "Taxonomy of topics", "appendix J", "small", "", [table], [], [], False)


def beyond() -> FigureResults:
    points = [Point(Estimate(w), around(3 + w / 4, 0.1), f"weight {w}") for w in (1, 2, 4)]
    before = [Point(Estimate(w), Estimate(2.9)) for w in (1, 2, 4)]
    series = [
        Series("sgtm_weighted", "SGTM", points),
        Series("sgtm_weighted", "SGTM before ablation", before, dashed=True),
    ]
    ticks = {"as it is": 1, "twice as much": 2, "four times as much": 4}
    levels = {"as in the recipe": 2.5}
    plot = Plot("", "Weight of the forget data", "Forget loss", series, x_levels=levels, x_ticks=ticks)
    title = "How much the forget data should weigh"
    return FigureResults("forget-weight", title, "beyond", "small", "", [plot], [], [run("weighted")], False)


def two_topics() -> FigureResults:
    sets = ["retain", "biology", "military"]
    values = [[4.94, 5.47, 5.21], [4.98, 5.72, 5.23], [4.86, None, 5.15]]
    heat = Heat("Loss", "model", "test set", ["SGTM", "SGTM, biology removed", "Perfect filter"], sets, values)
    labels = {"sgtm": "SGTM", "rmu": "RMU"}
    rises = [Estimate(0.044), Estimate(0.242), Estimate(0.0212)]
    falls = [Estimate(-0.0404), Estimate(-0.0153), around(-0.0351, 0.002)]
    bars = [
        Bars(title, "rise of the loss", sets, {"sgtm": first, "rmu": falls}, labels)
        for title, first in (("Rise", rises), ("Only falls", falls))
    ]
    title = "Two topics removable from one model"
    return FigureResults("two-topics", title, "beyond", "small", "", [heat, *bars], [], [], False)


def all_figures() -> list[FigureResults]:
    """In the paper's order."""
    return [
        figure_1(), figure_2(), table_1(), figure_3(), figure_4(), figure_9(check_only=True), figure_11(), table_5(), beyond(),
        two_topics()
    ]  # fmt: skip
