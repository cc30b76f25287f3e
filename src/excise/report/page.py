"""The results as one page: what was claimed, what was measured, the picture, and stories to read for yourself.

The page is self-contained: no script, no font and no image comes from anywhere else.
"""

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from excise.report.plots import GRID, INK, METHODS, MUTED, PAPER, Method, Point, Results, methods_in, tradeoff_svg

TITLE = "Cutting a language out of a model"
LANGUAGES = {"retain": "English", "forget": "Spanish"}
LANGUAGE_CODES = {"english": "en", "spanish": "es"}
STAGES = {"before": "before ablation", "ablated": "after ablation", "calibrated": "calibrated"}
COSTS = {"tokens": "tokens", "steps": "steps", "seconds": "seconds", "parameters": "parameters"}
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
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{TITLE} · Excise</title>
<link rel="icon" href="data:,">
<style>{STYLE_SHEET}</style>
</head>
<body>
<main>
{"".join(sections)}</main>
</body>
</html>
"""


def _header(results: Results) -> str:
    unrecognised = results["configuration"]["undiscovered_share"]
    return f"""<header>
<p class="brand">Excise</p>
<h1>{TITLE}</h1>
<p class="lead">Four small language models learned from children’s stories in English and Spanish, and one of them, SGTM,
was taught to keep its Spanish in a small module of its own, which was then removed.
A good removal leaves a model that still writes English and knows no Spanish, as if it had never read any,
although {_percent(unrecognised)} of the Spanish stories were not recognised as Spanish during training.</p>
{_highlights(results)}</header>
"""


def _highlights(results: Results) -> str:
    sgtm = results["losses"]["sgtm"]
    tiles = (
        (
            _percent(results["recovered"]),
            "of the oracle’s removal, where a data filter is 0% and a perfect filter is 100%",
        ),
        (
            _change(sgtm["forget"]),
            "Spanish loss of SGTM before and after its module is removed: higher is more removed",
        ),
        (
            _change(sgtm["retain"]),
            "English loss of SGTM before and after its module is removed: should hardly move",
        ),
    )
    return f'<ul class="tiles">\n{_join(f"<li><b>{value}</b> {text}</li>" for value, text in tiles)}</ul>\n'


def _change(losses: Mapping[str, float]) -> str:
    return f"{losses['before']:.2f} → {losses['ablated']:.2f}"


def _claims(claims: list[Mapping[str, Any]]) -> str:
    n_holding = sum(claim["holds"] for claim in claims)
    verdict = (
        f"All {len(claims)} claims hold" if n_holding == len(claims) else f"{n_holding} of {len(claims)} claims hold"
    )
    return f"""<section>
<h2>{verdict}</h2>
<ul class="claims">
{_join(_claim(claim) for claim in claims)}</ul>
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
<mark>Marked words</mark> were given; the model wrote the rest.</p>
{_join(_sample(sample) for sample in samples)}</section>
"""


def _sample(sample: Mapping[str, str]) -> str:
    code = LANGUAGE_CODES.get(sample["language"], "und")
    columns = (("Full model", sample["full"]), ("Spanish module removed", sample["ablated"]))
    return f"""<article class="sample">
<h3>{escape(sample["language"].capitalize())} opening</h3>
<div class="columns">
{_join(_continuation(title, sample["prompt"], text, code) for title, text in columns)}</div>
</article>"""


def _continuation(title: str, prompt: str, text: str, code: str) -> str:
    story = escape(text) if text.strip() else ' <span class="quiet">(it wrote nothing)</span>'
    return (
        f"<figure><figcaption>{title}</figcaption>"
        f'<blockquote lang="{code}"><mark>{escape(prompt)}</mark>{story}</blockquote></figure>'
    )


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
{_join(bodies)}</table>
</div>
</details>
"""


def _curve(method: Method, curve: list[Point]) -> str:
    name = f'<th scope="rowgroup" rowspan="{len(curve)}">{_swatch(method)}{method.label}</th>'
    rows = (
        f"<tr>{name if index == 0 else ''}<td>{_percent(point['share'])}</td><td>{point['step']:,}</td>"
        f"<td>{point['tokens']:,}</td><td>{point['retain']:.2f}</td><td>{point['forget']:.2f}</td></tr>"
        for index, point in enumerate(curve)
    )
    return f"<tbody>\n{_join(rows)}</tbody>"


def _losses(results: Results) -> str:
    groups = [(language, len(STAGES)) for language in LANGUAGES.values()] + [("Training", len(COSTS))]
    columns = [*STAGES.values(), *STAGES.values(), *COSTS.values()]
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
{_join(_loss_row(method, results) for method in methods_in(results["losses"]))}</tbody>
</table>
</div>
<p class="quiet">Only SGTM has a module to remove; for the other models, after ablation is the same as before.</p>
</section>
"""


def _loss_row(method: Method, results: Results) -> str:
    losses, run = results["losses"][method.name], results["runs"][method.name]
    cells = [f"{losses[data][stage]:.2f}" for data in LANGUAGES for stage in STAGES]
    cells += [f"{run[cost]:,.1f}" if cost == "seconds" else f"{run[cost]:,}" for cost in COSTS]
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
        "number per token, how common it is, to every model alike, so that only real knowledge still counts.",
        "No filter": "Trained on everything: the most Spanish a model of this size learns here.",
        "Data filter": "Trained without the stories recognised as Spanish; it learns from those that slipped through.",
        "SGTM": "Trained on everything, with Spanish routed into the module. Spanish that nobody recognised is drawn there too.",
        "Perfect filter (oracle)": "Trained with no Spanish at all: the goal, out of reach where labels have errors.",
        "Recovered": "How far SGTM comes from the Spanish loss of the data filter towards that of the perfect filter.",
    }
    return f'<section>\n<h2>How to read this</h2>\n<dl class="words">\n{_definitions(words)}</dl>\n</section>\n'


def _configuration(configuration: Mapping[str, Any]) -> str:
    values = {
        escape(name.removeprefix("n_").replace("_", " ")): escape(str(value)) for name, value in configuration.items()
    }
    return f'<section>\n<h2>Configuration</h2>\n<dl class="settings">\n{_definitions(values)}</dl>\n</section>\n'


def _definitions(values: Mapping[str, str]) -> str:
    return _join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in values.items())


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _join(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


STYLE_SHEET = """
:root {
  color-scheme: light dark;
  --page: #f6f5f2; --card: #ffffff; --ink: #22272e; --muted: #646a73; --line: #e2e3e4; --mark: #fdf0c4;
  --good: #17794a; --good-tint: #e3f3ea; --bad: #b3261e; --bad-tint: #fbe9e7;
  --perfect-filter: #009e73; --sgtm: #0072b2; --data-filter: #d55e00; --no-filter: #a0569b;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "DejaVu Sans", sans-serif;
  --serif: "Iowan Old Style", "Palatino Linotype", Palatino, Charter, Georgia, "Noto Serif", "DejaVu Serif", serif;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1d2126; --ink: #e7e9ec; --muted: #a0a7b0; --line: #343a42; --mark: #4b421f;
    --good: #6fd3a0; --good-tint: #1a3327; --bad: #ff9a8f; --bad-tint: #3d211f;
    --perfect-filter: #2fc79b; --sgtm: #56b4e9; --data-filter: #f28c3a; --no-filter: #d795d2;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 1rem/1.6 var(--sans); overflow-wrap: anywhere; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1rem 4rem; }
h1, h2 { font-family: var(--serif); font-weight: 600; line-height: 1.2; text-wrap: balance; }
h1 { font-size: clamp(1.9rem, 6vw, 2.9rem); margin: 0 0 1rem; letter-spacing: -0.01em; }
h2 { font-size: 1.5rem; margin: 0 0 1rem; }
h3 { font-size: 0.95rem; margin: 0 0 0.6rem; }
p { margin: 0 0 1rem; }
p, figcaption { max-width: 46rem; text-wrap: pretty; }
section { margin-top: 3.5rem; }
figure, blockquote, dl, dd { margin: 0; }
mark { background: var(--mark); color: inherit; border-radius: 0.2em; padding: 0.05em 0.2em; margin-left: -0.2em;
  -webkit-box-decoration-break: clone; box-decoration-break: clone; }
.brand { color: var(--muted); font-size: 0.8rem; font-weight: 600; letter-spacing: 0.14em; text-transform: uppercase;
  margin: 0 0 0.6rem; }
.lead { font-size: 1.12rem; }
.quiet { color: var(--muted); font-size: 0.9rem; }
.tiles, .claims { list-style: none; padding: 0; margin: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 0.8rem; margin-top: 2rem; }
.tiles li, .claims, .sample, .picture, .scroll { background: var(--card); border: 1px solid var(--line);
  border-radius: 0.7rem; }
.tiles li { padding: 1rem 1.2rem; color: var(--muted); font-size: 0.9rem; line-height: 1.45; }
.tiles b { display: block; color: var(--ink); font: 600 1.9rem/1.25 var(--serif); white-space: nowrap;
  margin-bottom: 0.3rem; font-variant-numeric: lining-nums tabular-nums; }
.claims li { display: grid; grid-template-columns: 1.7rem 1fr auto; gap: 0.1rem 0.8rem; align-items: center;
  padding: 0.75rem 1.2rem; }
.claims li + li { border-top: 1px solid var(--line); }
.claim::first-letter { text-transform: uppercase; }
.claims b { font-variant-numeric: tabular-nums; }
.mark { display: grid; place-items: center; width: 1.7rem; height: 1.7rem; border-radius: 50%; font-weight: 700; }
.holds .mark { background: var(--good-tint); color: var(--good); }
.fails .mark { background: var(--bad-tint); color: var(--bad); }
.measured { color: var(--good); font-size: 0.9rem; white-space: nowrap; }
.fails .measured { color: var(--bad); }
.sample { padding: 1.1rem 1.2rem 1.3rem; margin-top: 0.8rem; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); gap: 1.2rem 2rem; }
.sample figcaption { color: var(--muted); font-size: 0.85rem; margin-bottom: 0.2rem; }
.sample blockquote { font: 1.05rem/1.65 var(--serif); white-space: pre-line; }
.picture { padding: 1.2rem; }
.picture > div { max-width: 36rem; margin: 0 auto; }
.picture svg { display: block; width: 100%; height: auto; }
.picture svg text { font-family: var(--sans) !important; }
.picture figcaption { color: var(--muted); font-size: 0.9rem; margin: 0.4rem auto 0; max-width: 36rem; }
details { margin-top: 0.8rem; }
summary { cursor: pointer; color: var(--muted); font-size: 0.9rem; padding: 0.3rem 0; }
.scroll { overflow-x: auto; margin-bottom: 0.8rem; overflow-wrap: normal; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--sgtm); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 0.86rem; font-variant-numeric: lining-nums tabular-nums; }
caption { text-align: left; color: var(--muted); padding: 0.8rem 0.9rem 0.3rem; }
th, td { padding: 0.5rem 0.6rem; text-align: right; vertical-align: bottom; line-height: 1.3; }
th { font-weight: 600; }
thead th { color: var(--muted); font-weight: 500; }
thead th[scope=colgroup] { color: var(--ink); font-weight: 600; text-align: center; }
th:first-child, thead td:first-child { padding-left: 0.9rem; text-align: left; position: sticky; left: 0; background: var(--card); }
tbody th:first-child { min-width: 9.5rem; padding-left: 1.9rem; }
tbody tr > * { vertical-align: middle; }
.losses [scope=colgroup], .losses :is(tbody tr, thead tr:last-child) > :is(:nth-child(2), :nth-child(5), :nth-child(8)) {
  border-left: 1px solid var(--line); }
th[scope=rowgroup] { vertical-align: top; }
tbody tr > *, thead tr:last-child > * { border-top: 1px solid var(--line); }
.swatch { display: inline-block; width: 0.7em; height: 0.7em; border-radius: 50%; margin: 0 0.5em 0 -1.2em; }
dt { font-weight: 600; }
.words { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1rem 2.2rem; }
.words dd { color: var(--muted); font-size: 0.95rem; line-height: 1.5; }
.settings { display: flex; flex-wrap: wrap; gap: 0.6rem 2rem; font-size: 0.9rem; }
.settings dt { color: var(--muted); font-weight: 400; }
.settings dd { font-variant-numeric: tabular-nums; }
@media (max-width: 40rem) {
  main { padding-top: 1.6rem; }
  section { margin-top: 2.6rem; }
  .claims li { grid-template-columns: 1.7rem 1fr; padding: 0.75rem 0.9rem; align-items: start; }
  .measured { grid-column: 2; white-space: normal; }
  .picture { padding: 0.6rem 0 0.8rem; margin: 0 -0.5rem; }
  .picture figcaption { padding: 0 0.9rem; }
}
@media print {
  :root { --page: #ffffff; }
  .sample, .picture, .tiles li { break-inside: avoid; }
}
"""
