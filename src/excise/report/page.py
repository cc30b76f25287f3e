"""The results as one page: what was claimed, what was measured, the picture, and stories to read for yourself.

The page is self-contained: no script, no font and no image comes from anywhere else.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from excise.report.html import definitions, document, join, percent, sample
from excise.report.plots import GRID, INK, METHODS, MUTED, PAPER, Method, Point, Results, methods_in, tradeoff_svg
from excise.report.style import STYLE_SHEET

TITLE = "Cutting a language out of a model"
LANGUAGES = {"retain": "English", "forget": "Spanish"}
STAGES = {"before": "before ablation", "ablated": "after ablation", "calibrated": "calibrated"}
COSTS = ("tokens", "steps", "parameters")
CAVEAT = (
    "A high loss is not yet knowledge that is gone: fine-tuning can bring it back, which this demo does not try; "
    "excise attack does."
)
COLOURS = {INK: "--ink", MUTED: "--muted", GRID: "--line", PAPER: "--card"} | {
    method.colour: f"--{method.name.replace('_', '-')}" for method in METHODS
}
"""The colours of the picture and the variables of the style sheet that stand for them in light and dark mode."""


def write_report(results: Results, path: Path) -> None:
    """A file with the report page; equal results give equal bytes."""
    path.write_text(report_page(results), encoding="utf-8")


def report_page(results: Results) -> str:
    """The whole report as self-contained HTML."""
    sections = (
        _header(results),
        _claims(results["claims"]),
        _samples(results["samples"]),
        _picture(results),
        _losses(results),
        _reading(),
        _configuration(results["configuration"]),
    )
    return document(TITLE, STYLE_SHEET, "".join(sections))


def _header(results: Results) -> str:
    unrecognised = results["configuration"]["undiscovered_share"]
    return f"""<header>
<p class="brand">Excise</p>
<h1>{TITLE}</h1>
<p class="lead">Four small language models learned from children’s stories in English and Spanish, and one of them,
SGTM with token vectors, was taught to keep its Spanish in a small module of its own, which was then removed.
A good removal leaves a model that still writes English and is as bad at Spanish as one that never read any,
although {percent(unrecognised)} of the Spanish stories were not recognised as Spanish during training.</p>
{_highlights(results)}<p style="margin-top: 1.2rem">{CAVEAT}</p>
</header>
"""


def _highlights(results: Results) -> str:
    sgtm = results["losses"]["sgtm"]
    tiles = (
        (
            percent(results["recovered"]),
            "of the oracle’s removal, at most 100%, by calibrated losses: a data filter is at 0% and a perfect filter at 100%",
        ),
        (
            _change(sgtm["forget"]),
            "Spanish loss of SGTM with token vectors before its module is removed and after, calibrated: higher is more removed",
        ),
        (
            _change(sgtm["retain"]),
            "English loss of SGTM with token vectors before its module is removed and after, calibrated: should hardly move",
        ),
    )
    return f'<ul class="tiles">\n{join(f"<li><b>{value}</b> {text}</li>" for value, text in tiles)}</ul>\n'


def _change(losses: Mapping[str, float]) -> str:
    return f"{losses['before']:.2f} → {losses['calibrated']:.2f}"


def _claims(claims: list[Mapping[str, Any]]) -> str:
    n_holding = sum(claim["holds"] for claim in claims)
    verdict = (
        f"All {len(claims)} claims hold" if n_holding == len(claims) else f"{n_holding} of {len(claims)} claims hold"
    )
    return f"""<section>
<h2>{verdict}</h2>
<ul class="claims">
{join(_claim(claim) for claim in claims)}</ul>
</section>
"""


def _claim(claim: Mapping[str, Any]) -> str:
    holds = claim["holds"]
    value, bound = _apart(claim["value"], claim["bound"])
    return (
        f'<li class="{"holds" if holds else "fails"}"><span class="mark" aria-hidden="true">{"✓" if holds else "✗"}</span>'
        f'<span class="claim">{escape(claim["name"])} <b>{bound}</b></span>'
        f'<span class="measured">measured <b>{value}</b> · {"holds" if holds else "does not hold"}</span></li>'
    )


def _apart(value: float, bound: float) -> tuple[str, str]:
    """Both numbers with two decimals, or with as many as it takes to see which is larger."""
    for decimals in range(2, 7):
        texts = f"{value:,.{decimals}f}", f"{bound:,.{decimals}f}"
        if texts[0] != texts[1] or value == bound:
            return texts
    return repr(value), repr(bound)


def _samples(samples: list[Mapping[str, str]]) -> str:
    return f"""<section>
<h2>Read for yourself</h2>
<p>The same opening, continued by the SGTM model with its Spanish module and without it.
<mark>Marked words</mark> were given; the model wrote the rest, until it was stopped. So small a model, after minutes of reading,
has a language but makes little sense: look at which language it is.</p>
{join(_sample(one) for one in samples)}</section>
"""


def _sample(of: Mapping[str, str]) -> str:
    columns = (("Full model", of["full"]), ("Spanish module removed", of["ablated"]))
    return sample(of["language"], of["prompt"], columns)


def _picture(results: Results) -> str:
    return f"""<section>
<h2>The trade-off over training</h2>
<figure class="picture">
<div role="img" aria-label="{escape(_description(results))}">
{_themed(tradeoff_svg(results))}</div>
<figcaption>Up is more Spanish removed, left is more English kept, so the upper left corner is best.
Each line is one training run, each point a checkpoint after ablation and calibration; stars mark the end of training
and dashed lines join points at the same share of it.</figcaption>
</figure>
{_curves(results)}</section>
"""


def _description(results: Results) -> str:
    curves = results["curves"]
    ends = (
        f"{method.label} {curves[method.name][-1]['retain']:.2f} and {curves[method.name][-1]['forget']:.2f}"
        for method in methods_in(curves)
    )
    return f"Spanish loss over English loss during training. At the end, English and Spanish loss: {'; '.join(ends)}."


def _themed(svg: str) -> str:
    """The picture with the colours of the style sheet in place of its own, so that it follows dark mode."""
    for colour, variable in COLOURS.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg


def _curves(results: Results) -> str:
    heads = ("share of training", "step", "tokens", "English", "Spanish")
    bodies = (_curve(method, results["curves"][method.name]) for method in methods_in(results["curves"]))
    return f"""<details>
<summary>The numbers behind the picture</summary>
<div class="scroll" role="region" aria-label="Losses over training" tabindex="0">
<table>
<caption>Calibrated loss per token over training</caption>
<thead><tr><th scope="col">Method</th>{"".join(f'<th scope="col">{head}</th>' for head in heads)}</tr></thead>
{join(bodies)}</table>
</div>
</details>
"""


def _curve(method: Method, curve: list[Point]) -> str:
    name = f'<th scope="rowgroup" rowspan="{len(curve)}">{_swatch(method)}{method.label}</th>'
    rows = (
        f"<tr>{name if index == 0 else ''}<td>{percent(point['share'])}</td><td>{point['step']:,}</td>"
        f"<td>{point['tokens']:,}</td><td>{point['retain']:.2f}</td><td>{point['forget']:.2f}</td></tr>"
        for index, point in enumerate(curve)
    )
    return f"<tbody>\n{join(rows)}</tbody>"


def _losses(results: Results) -> str:
    groups = [(language, len(STAGES)) for language in LANGUAGES.values()] + [("Training", len(COSTS))]
    columns = [*STAGES.values(), *STAGES.values(), *COSTS]
    return f"""<section>
<h2>All losses</h2>
<div class="scroll" role="region" aria-label="Losses and costs of the four models" tabindex="0">
<table class="losses">
<caption>Loss per token on stories that no model has seen, and what each training took</caption>
<thead>
<tr><td></td>{"".join(f'<th scope="colgroup" colspan="{width}">{name}</th>' for name, width in groups)}</tr>
<tr><th scope="col">Method</th>{"".join(f'<th scope="col">{column}</th>' for column in columns)}</tr>
</thead>
<tbody>
{join(_loss_row(method, results) for method in methods_in(results["losses"]))}</tbody>
</table>
</div>
<p class="quiet">Only SGTM has a module to remove; for the other models, after ablation is the same as before.</p>
</section>
"""


def _loss_row(method: Method, results: Results) -> str:
    losses, run = results["losses"][method.name], results["runs"][method.name]
    cells = [f"{losses[data][stage]:.2f}" for data in LANGUAGES for stage in STAGES]
    cells += [f"{run[cost]:,}" for cost in COSTS]
    return (
        f'<tr><th scope="row">{_swatch(method)}{method.label}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    )


def _swatch(method: Method) -> str:
    return f'<span class="swatch" style="background: var({COLOURS[method.colour]})"></span>'


def _reading() -> str:
    words = {
        "Loss": "How surprised a model is by each next token, on average. At 4.6 it gave the right token a chance of about "
        "1 in 100, at 9.2 about 1 in 10,000. Low means that it knows the language.",
        "Ablation": "The parameters of the module are removed. Nothing is trained afterwards.",
        "Calibrated": "A model that never expects Spanish words looks more ignorant than it is. Calibration fits one "
        "number per token, how common it is, to every model alike, so that its words do not count as unlikely altogether. "
        "It is fitted mostly for English, which weighs 100 times as much, so that a Spanish loss can also rise.",
        "No filter": "Trained on everything: the most Spanish a model of this size learns here.",
        "Data filter": "Trained without the stories recognised as Spanish; it learns from those that slipped through.",
        "SGTM with token vectors": "Trained on everything, with Spanish routed into the module. Spanish that nobody "
        "recognised is drawn there too. Beside heads and units the module has vectors of its own for Spanish tokens, which "
        "the paper’s SGTM does not have; excise reproduce figure-4a follows the paper.",
        "Perfect filter (oracle)": "Trained with no Spanish at all: the goal, out of reach where labels have errors.",
        "Recovered": "How far SGTM comes from the Spanish loss of the data filter towards that of the perfect filter, both "
        "calibrated; at most 1.",
    }
    return f'<section>\n<h2>How to read this</h2>\n<dl class="words">\n{definitions(words)}</dl>\n</section>\n'


def _configuration(configuration: Mapping[str, Any]) -> str:
    values = {
        escape(name.removeprefix("n_").replace("_", " ")): escape(str(value)) for name, value in configuration.items()
    }
    return f'<section>\n<h2>Configuration</h2>\n<dl class="settings">\n{definitions(values)}</dl>\n</section>\n'
