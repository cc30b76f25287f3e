"""The report: the verdict in numbers, then the paper's figures and tables in their order, each with its claims, from results alone."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from excise.evals.figure import FigureResults, PaperClaim, RunLine, Table, read_figure
from excise.files import write_whole
from excise.recipes.figures import FIGURES
from excise.recipes.figures.planned import Figure
from excise.report.charts import SCRIPT, SYMBOLS, draw_legend, draw_panels, legend_of, methods_in
from excise.report.claims import STAMP, claims_of, counts, rests_on_little, tally
from excise.report.html import definitions, document, join, sample
from excise.report.numbers import count, number
from excise.report.style import REPORT_SHEET, STYLE_SHEET, TOGGLES, WORDS, Look, colour_variables, looks_of
from excise.report.tables import html_row, html_table

PAPER = "https://arxiv.org/abs/2512.05648"
UNFOLD = '<p><button type="button" id="unfold" aria-pressed="false" hidden>Open all claims</button></p>\n'
UNFOLDING = """<script>
for (const button of document.querySelectorAll("#unfold")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-pressed") === "false";
    for (const claims of document.querySelectorAll(".claimed")) claims.open = open;
    button.setAttribute("aria-pressed", open);
    button.textContent = open ? "Fold all claims" : "Open all claims";
  });
}
</script>
"""
BEYOND = "beyond"
AFTER = {"table-1": 2.5}
"""Tables that stand among the figures of the paper; the others follow them."""
SCALES = {
    "smoke": "tiny models on the embedded texts, minutes on two cores: a check that everything works, a tendency at best",
    "small": "models of up to 8 million parameters on real text: one GPU",
    "paper": "the paper’s models, data and settings",
}
GLOSSARY = {
    "Loss": "How surprised a model is by each next token, on average. Low on retain data means that it knows what it should; "
    "high on forget data means that it cannot use what it should not know. Whether that is gone for good, an attack says.",
    "Calibrated": "After ablation every model alike is given one number per token, how common it is, so that a "
    "domain's words do not count as unlikely altogether.",
    "Intervals": "In square brackets, 95 %: over seeds where there are several, or over test documents. Over seeds they say what "
    "training again would give, and little of what other test documents would. Some numbers have none, as those of one seed "
    "that are no mean over documents; another seed could decide such a claim otherwise. Of so many claims a few are wrong by "
    "chance.",
    "Undecided": "Our interval holds both: that the claim is true and that it is not.",
    "As built": "The claim is about what was built and not about what was found: it holds wherever the code is right.",
    "Pipeline check only": "The model without a filter ended above 0.7 of its first loss. It learned too little for the figure "
    "to say anything about the method; it only shows that the steps work. Its claims are not counted.",
}

MEASURE_WORDS = {
    "Relative gradient norms": "How strongly a document would change each part of the model, as a share of the part's size. The "
    "cosine says how much that change points where the domain's labelled training documents point.",
    "Losses token by token": "Whether a loss rose on many tokens or on a few: broad means that the mean rose, that most tokens "
    "rose, and that half of the rise is left without the tenth of tokens at either end.",
    "Loss on each set": "Not calibrated.",
    "Relearning": "An attacker fine-tunes the model without its module, or with a new one, on forget and retain documents. The "
    "goal is the loss of the run trained with no filter. Not calibrated.",
    "Forget loss with text in the context": "The loss at the beginning of forget documents after so many tokens of other forget "
    "documents, and, as the control, of retain documents. Not calibrated.",
}
"""What tables of a run's measures show, by the beginning of their titles."""


def read_figures(directory: Path) -> list[FigureResults]:
    """The figures of a reproduction, in the paper's order."""
    return in_order([read_figure(path) for path in sorted((directory / "figures").glob("*.json"))])


def in_order(figures: Iterable[FigureResults]) -> list[FigureResults]:
    """As in the paper, then what is beyond it; a figure cannot be there twice."""
    found = sorted(figures, key=_place)
    for one, other in pairwise(found):
        if one.name == other.name:
            raise ValueError(f"{one.name} is there twice; report its two reproductions apart")
    return found


def _place(figure: FigureResults | Figure) -> tuple[bool, float, str]:
    parts = re.fullmatch(r"(figure|table)-(\d+)(.*)", figure.name)
    after_figures = 0 if parts and parts[1] == "figure" else 1000
    number = AFTER.get(figure.name, int(parts[2]) + after_figures) if parts else 2000
    return figure.section == BEYOND, number, figure.name


def looks_in(figures: Iterable[FigureResults]) -> dict[str, Look]:
    """A look for each method, the same in all figures."""
    return looks_of(*(methods_in(figure.panels) for figure in figures))


def write_reproduction(figures: Sequence[FigureResults], path: Path) -> None:
    """A file with the report; equal results give equal bytes."""
    write_whole(path, reproduction_page(figures).encode())


def reproduction_page(figures: Sequence[FigureResults]) -> str:
    """The whole report as self-contained HTML."""
    if not figures:
        raise ValueError("there is no figure to report; reproduce one first: excise reproduce figure-3")
    looks = looks_in(figures)
    sections = [_header(figures), _contents(figures), *(_figure(figure, looks) for figure in figures)]
    style = "".join([STYLE_SHEET, REPORT_SHEET, WORDS, "\n", TOGGLES, "\n", colour_variables(looks)])
    return document(_title(figures), style, SYMBOLS + "".join([*sections, _reading(figures)]), SCRIPT + UNFOLDING)


def _title(figures: Sequence[FigureResults]) -> str:
    """The verdict."""
    of_paper, ours, checks = counts_of(figures), counts_of(figures, ours=True), _checks(figures)
    if not _claims_in(figures):
        return f"{_some(len(_distinct_runs(figures)), 'run')} compared"
    if any(of_paper.values()):
        return _held(of_paper, "of the paper")
    if any(ours.values()):
        return _held(ours, "of our own")
    if len(checks) == len(_claims_in(figures)):
        return f"{sum(checks)} of {_some(len(checks), 'check')} of the implementation pass"
    return "A check of the pipeline, not of the paper"


def _held(counts: Mapping[bool | None, int], whose: str) -> str:
    total = sum(counts.values())
    which = "All" if counts[True] == total else f"{counts[True]} of"
    return f"{which} {_some(total, 'claim')} {whose} {'hold' if counts[True] != 1 else 'holds'}"


def _claims_in(figures: Iterable[FigureResults]) -> list[PaperClaim]:
    return [claim for figure in figures for claim in figure.claims]


def _header(figures: Sequence[FigureResults]) -> str:
    runs = _distinct_runs(figures)
    tokens = f"<li><b>{len(runs)}</b> runs, trained on {count(_trained_on(runs))} tokens in all</li>"
    return f"""<header>
<p class="brand">Excise</p>
<h1>{_title(figures)}</h1>
<p class="lead">{_lead(figures)}</p>
<ul class="tiles">
{join([*_tallies(figures), *([tokens] if runs else [])])}</ul>
{UNFOLD if _claims_in(figures) else ""}</header>
"""


def _trained_on(runs: Iterable[RunLine]) -> int:
    """Tokens of all runs; one that was made of another was not trained again."""
    return sum(run.tokens for run in runs if run.first_loss is not None)


def _distinct_runs(figures: Iterable[FigureResults]) -> list[RunLine]:
    """Every run once, however many figures share it."""
    return list({(run.name, run.checkpoint_sha256): run for figure in figures for run in figure.runs}.values())


def counts_of(figures: Iterable[FigureResults], *, ours: bool = False) -> dict[bool | None, int]:
    """How many findings of the paper, or of our own, hold, do not, and are undecided."""
    return counts(_findings(figures, ours))


def _findings(figures: Iterable[FigureResults], ours: bool) -> list[PaperClaim]:
    """Claims that count: what only checks the code or the pipeline does not."""
    of_figures = _claims_in(figure for figure in figures if not figure.pipeline_check_only)
    return [claim for claim in of_figures if claim.is_ours is ours and not claim.check]


def _checks(figures: Iterable[FigureResults]) -> list[bool]:
    """Whether each check of what was built passes."""
    return [claim.holds is True for claim in _claims_in(figures) if claim.check]


def _tallies(figures: Sequence[FigureResults]) -> list[str]:
    of_paper, ours, checks = counts_of(figures), counts_of(figures, ours=True), _checks(figures)
    words = {
        True: ("holds" if of_paper[True] == 1 else "hold") + _on_little(figures, True),
        False: ("does not hold" if of_paper[False] == 1 else "do not hold") + _on_little(figures, False),
        None: "cannot be decided yet: our intervals allow both",
    }
    tallies = [f"<b>{n}</b> {words[holds]}" for holds, n in of_paper.items()] if any(of_paper.values()) else []
    if any(ours.values()):
        rest = f"{ours[False]} do not, {ours[None]} cannot be decided"
        tallies.append(f"<b>{ours[True]}</b> of {sum(ours.values())} of our own hold, {rest}")
    if checks:
        tallies.append(f"<b>{sum(checks)}</b> of {_some(len(checks), 'check')} of the implementation pass")
    if stamped := sum(figure.pipeline_check_only for figure in figures if figure.claims):
        tallies.append(f"<b>{stamped}</b> of {len(figures)} figures a {STAMP}: their claims are not counted")
    return [f"<li>{tally}</li>" for tally in tallies]


def _on_little(figures: Iterable[FigureResults], holds: bool) -> str:
    """How many of these verdicts about the paper are those of one seed, or have no interval."""
    n = sum(
        claim.holds is holds and rests_on_little(claim, figure)
        for figure in figures
        for claim in _findings([figure], ours=False)
    )
    return f", {n} of them on one seed or without an interval" if n else ""


def _lead(figures: Sequence[FigureResults]) -> str:
    """What this page is."""
    scales = [f"<b>{scale}</b> ({words})" for scale, words in SCALES.items() if scale in {f.scale for f in figures}]
    said = ["What was measured of each run, with 95 % intervals over test documents."]
    if _claims_in(figures):
        said = [
            f'What <a href="{PAPER}">the paper</a> claims about its figures and tables, the number that it gives, and what our '
            "own runs found."
        ]
    said += [f"Scale: {', and '.join(scales)}."] if scales else []
    if missing := _missing(figures):
        said.append(f"{len(missing)} of the paper’s figures and tables are not made yet: excise reproduce makes them.")
    return " ".join(said)


def _some(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def _missing(figures: Sequence[FigureResults]) -> list[Figure]:
    """What the paper has and a reproduction has not."""
    drawn = {figure.name for figure in figures}
    planned = FIGURES.values() if any(figure.scale for figure in figures) else ()
    return [figure for figure in planned if figure.section != BEYOND and figure.name not in drawn]


def _contents(figures: Sequence[FigureResults]) -> str:
    entries: list[FigureResults | Figure] = sorted([*figures, *_missing(figures)], key=_place)
    if len(entries) < 2:
        return ""
    return f'<nav class="contents" aria-label="Contents">\n<h2>Contents</h2>\n<ol>\n{join(map(_entry, entries))}</ol>\n</nav>\n'


def _entry(figure: FigureResults | Figure) -> str:
    title = escape(figure.title)
    if isinstance(figure, Figure):
        return f"<li><span>{_name(figure)}</span><span>{title}<small>not made yet</small></span></li>"
    said = f"<small>{tally(figure)}</small>" if figure.claims else ""
    return f'<li><span>{_name(figure)}</span><a href="#{_anchor(figure)}">{title}</a>{said}</li>'


def _name(figure: FigureResults | Figure) -> str:
    """As the paper calls it: Figure 3."""
    words = figure.name.replace("-", " ").replace("_", " ")
    return (
        escape(words[:1].upper() + words[1:])
        if re.match(r"(figure|table)-\d", figure.name)
        else "Beyond"
        if figure.section == BEYOND
        else "Runs"
    )


def _anchor(figure: FigureResults) -> str:
    return escape(re.sub(r"[^\w-]", "-", figure.name))


def _figure(figure: FigureResults, looks: Mapping[str, Look]) -> str:
    legend = legend_of(figure.panels, {method: look.marker for method, look in looks.items()})
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>\n" if figure.caption else ""
    place = [_name(figure), *_section(figure), *([f"{figure.scale} scale"] if figure.scale else [])]
    return f"""<section id="{_anchor(figure)}">
<p class="brand">{" · ".join(place)}</p>
<h2>{escape(figure.title)}</h2>
{_stamp(figure)}<figure class="figure" aria-label="{escape(figure.title)}">
{draw_legend(legend)}{draw_panels(figure.panels, legend)}{caption}</figure>
{claims_of(figure)}{_about(figure)}{_samples(figure.samples)}</section>
"""


def _section(figure: FigureResults) -> list[str]:
    if figure.section == BEYOND:
        return ["not in the paper"]
    section = figure.section if re.match(r"(section|appendix)\b", figure.section, re.I) else f"section {figure.section}"
    return [escape(section)] if figure.section else []


def _stamp(figure: FigureResults) -> str:
    if not figure.pipeline_check_only:
        return ""
    return f'<p><strong class="stamp">{STAMP}</strong>The runs learned too little for this figure to judge the method by.</p>\n'


def _about(figure: FigureResults) -> str:
    """What the figure was made from."""
    parts = [_runs(figure.runs), _configurations(figure.configurations)]
    return f'<div class="about">\n{"".join(parts)}</div>\n' if any(parts) else ""


def _runs(runs: Sequence[RunLine]) -> str:
    if not runs:
        return ""
    seeds, tokens = len({run.seed for run in runs}), sorted(run.tokens for run in runs)
    each = " to ".join(dict.fromkeys((count(tokens[0]), count(tokens[-1]))))
    head = ("Run", "seed", "parameters", "steps", "tokens", "first loss", "last loss", "checkpoint")
    rows = (
        html_row(
            escape(run.name),
            [
                str(run.seed),
                *(f"{n:,}" for n in (run.parameters, run.steps, run.tokens)),
                *("–" if loss is None else number(loss, 2) for loss in (run.first_loss, run.last_loss)),
                f"<code>{escape(run.checkpoint_sha256[:10])}</code>",
            ],
        )
        for run in runs
    )
    all_runs = f"{len(runs)} runs, {_some(seeds, 'seed')}; {each} tokens each, {count(_trained_on(runs))} in all"
    return f"""<p class="quiet">{all_runs if len(runs) > 1 else f"1 run of {each} tokens"}.</p>
<details><summary>The runs</summary>
{html_table(head, rows, "Runs behind this figure")}</details>
"""


def _configurations(configurations: Mapping[str, Any]) -> str:
    """Where the methods differ as a table, and what they have in common."""
    if not configurations:
        return ""
    flat = {method: _flat(config) for method, config in configurations.items()}
    options = list(dict.fromkeys(option for config in flat.values() for option in config))
    values = {option: [config.get(option, "–") for config in flat.values()] for option in options}
    rows = [html_row(escape(o), map(escape, found)) for o, found in values.items() if len(set(found)) > 1]
    same = {escape(option): escape(found[0]) for option, found in values.items() if len(set(found)) == 1}
    table = html_table(["Where they differ", *flat], rows, "Options that differ") if rows else ""
    shared = (
        f'<h3>{"The same for all" if rows else "Options"}</h3>\n<dl class="settings">\n{definitions(same)}</dl>\n'
        if same
        else ""
    )
    return f"<details><summary>How they were trained</summary>\n{table}{shared}</details>\n"


def _flat(config: Any, name: str = "") -> dict[str, str]:
    """Options by dotted name."""
    if isinstance(config, Mapping):
        inner = (_flat(value, f"{name}.{key}".lstrip(".")) for key, value in config.items())
        return {option: value for found in inner for option, value in found.items()}
    text = config if isinstance(config, str) else json.dumps(config, ensure_ascii=False)
    return {name or "configuration": text or "–"}


def _samples(samples: Sequence[Mapping[str, str]]) -> str:
    if not samples:
        return ""
    drawn = (
        sample(
            of.get("language", ""),
            of.get("prompt", ""),
            [(k, v) for k, v in of.items() if k not in ("language", "prompt")],
        )
        for of in samples
    )
    return f"""<details><summary>Read for yourself: what the models write after the <mark>marked</mark> words</summary>
{join(drawn)}</details>
"""


def _reading(figures: Sequence[FigureResults]) -> str:
    needless = {
        "Undecided": not _claims_in(figures),
        "As built": not _checks(figures),
        STAMP.capitalize(): not any(f.pipeline_check_only for f in figures),
    }
    words = {word: meaning for word, meaning in GLOSSARY.items() if not needless.get(word)}
    titles = [panel.title for figure in figures for panel in figure.panels if isinstance(panel, Table)]
    words |= {word: of for word, of in MEASURE_WORDS.items() if any(title.startswith(word) for title in titles)}
    return f'<section>\n<h2>How to read this</h2>\n<dl class="words">\n{definitions(words)}</dl>\n</section>\n'
