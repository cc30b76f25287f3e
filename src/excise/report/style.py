"""How pages and pictures look: a colour and a marker for each method, and the style sheets, in light and dark mode."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

N_TOGGLES = 24
"""Series of a figure that can be switched off."""


@dataclass(frozen=True)
class Look:
    """How a method is drawn, the same in every figure."""

    light: str
    dark: str
    marker: str
    """In matplotlib's letters."""


LOOKS = {  # colours after Okabe and Ito, dark or light enough for a contrast of 3; the markers differ too
    "sgtm": Look("#0072b2", "#56b4e9", "o"),
    "perfect_filter": Look("#009e73", "#2fc79b", "D"),
    "data_filter": Look("#d55e00", "#f28c3a", "s"),
    "weak_filter": Look("#d55e00", "#f28c3a", "s"),
    "strict_filter": Look("#9c6b00", "#e5b53b", "v"),
    "no_filter": Look("#a0569b", "#d795d2", "^"),
    "gradient_routing": Look("#c2185b", "#ff8fb3", "X"),
    "rmu": Look("#5f6670", "#b6bdc6", "P"),
    "activation_masking": Look("#7b4f2c", "#c9a27e", "<"),
    "sgtm_joint_projection": Look("#4a4fb0", "#a3a8f7", "p"),
    "sgtm_joint_attention": Look("#007f8c", "#4ccad6", "h"),
    "sgtm_joint_down_projection": Look("#4a4fb0", "#a3a8f7", "p"),
    "sgtm_joint_embeddings": Look("#5b8c00", "#a5d341", ">"),
    "token_reset": Look("#8a4b5e", "#dca3b3", "d"),
    "small_steps": Look("#5b8c00", "#a5d341", ">"),
    "forget_parameters": Look("#009e73", "#2fc79b", "D"),
    "retain_parameters": Look("#0072b2", "#56b4e9", "o"),
    "before_ablation": Look("#3d94cc", "#a9d8f5", "o"),
    "after_ablation": Look("#00507d", "#3a8fc2", "s"),
    "equal": Look("#767c85", "#8d949e", ""),
}
"""`equal` is for lines between methods, as those of equal compute."""
SPARE = (
    *("sgtm", "data_filter", "perfect_filter", "no_filter", "strict_filter", "gradient_routing", "rmu"),
    *("sgtm_joint_attention", "sgtm_joint_projection", "activation_masking", "sgtm_joint_embeddings"),
)


def looks_of(*figures: Iterable[str]) -> dict[str, Look]:
    """A look for every method of some figures; those that are not known take, in the order of their names, what no method
    has with which they share a figure."""
    groups = [set(methods) for methods in figures]
    names = sorted(set().union(*groups))
    looks = {name: LOOKS[name] for name in names if name in LOOKS}
    for i, name in enumerate(name for name in names if name not in LOOKS):
        beside = {looks[other] for group in groups if name in group for other in group if other in looks}
        free = [LOOKS[spare] for spare in SPARE if LOOKS[spare] not in beside]
        looks[name] = free[0] if free else LOOKS[SPARE[i % len(SPARE)]]
    return looks


def colour_of(method: str) -> str:
    """The variable of the style sheet that holds the colour of a method."""
    return f"--m-{re.sub('[^a-z0-9]', '-', method.lower())}"


def colour_variables(looks: dict[str, Look]) -> str:
    """The colours of methods for a style sheet: `--m-sgtm` and so on."""
    light, dark = (
        " ".join(f"{colour_of(name)}: {getattr(look, mode)};" for name, look in looks.items())
        for mode in ("light", "dark")
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


STYLE_SHEET = """
:root {
  color-scheme: light dark;
  --page: #f6f5f2; --card: #ffffff; --ink: #22272e; --muted: #646a73; --line: #e2e3e4; --mark: #fdf0c4;
  --good: #17794a; --good-tint: #e3f3ea; --bad: #b3261e; --bad-tint: #fbe9e7; --shade: rgb(34 39 46 / 0.28);
  --perfect-filter: #009e73; --sgtm: #0072b2; --data-filter: #d55e00; --no-filter: #a0569b;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "DejaVu Sans", sans-serif;
  --serif: "Iowan Old Style", "Palatino Linotype", Palatino, Charter, Georgia, "Noto Serif", "DejaVu Serif", serif;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1d2126; --ink: #e7e9ec; --muted: #a0a7b0; --line: #343a42; --mark: #4b421f;
    --good: #6fd3a0; --good-tint: #1a3327; --bad: #ff9a8f; --bad-tint: #3d211f; --shade: rgb(231 233 236 / 0.3);
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
.scroll { overflow-x: auto; margin-bottom: 0.8rem; overflow-wrap: normal;
  background: linear-gradient(to left, var(--card) 40%, transparent) right / 3.5rem 100% no-repeat local,
    linear-gradient(to left, var(--shade), transparent) right / 1.4rem 100% no-repeat scroll, var(--card); }
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

TOGGLES = "\n".join(f".figure:has(.k{i}:not(:checked)) .panel .s{i} {{ display: none; }}" for i in range(N_TOGGLES))
WORDS = ", ".join(f".c{i} :is(th, td):nth-child({i})" for i in range(1, 13)) + " { text-align: left; }"
REPORT_SHEET = """
main { max-width: 66rem; }
section { scroll-margin-top: 1rem; }
a { color: inherit; text-decoration-color: var(--muted); text-underline-offset: 0.2em; }
a:hover { text-decoration-thickness: 2px; }
:is(a, button, label:has(:focus-visible), .chart svg):focus-visible, label:has(:focus-visible) { outline: 2px solid var(--sgtm); outline-offset: 2px;
  border-radius: 0.2rem; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.scroll { position: relative; }
.scroll:has(tbody tr:nth-child(30)) { max-height: 38rem; overflow-y: auto; }
.scroll:has(tbody tr:nth-child(30)) thead :is(th, td) { position: sticky; top: 0; background: var(--card); z-index: 1; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); }
#unfold { font: inherit; font-size: 0.95rem; color: inherit; background: var(--card); border: 1px solid var(--muted); border-radius: 0.4rem;
  padding: 0.35rem 0.8rem; margin-top: 0.6rem; cursor: pointer; }
.contents { margin-top: 2.5rem; }
.contents ol { list-style: none; padding: 0; margin: 0; columns: 22rem 2; column-gap: 2.5rem; font-size: 0.95rem; }
.contents li { break-inside: avoid; padding: 0.28rem 0; display: grid; grid-template-columns: 6.2rem 1fr; gap: 0 0.6rem; line-height: 1.4; }
.contents li > span, .contents small { color: var(--muted); }
.contents small { display: block; grid-column: 2; font-size: 0.85rem; }
.claimed > summary { color: var(--ink); font-size: 0.95rem; }
.claimed > .claims { margin-top: 0.4rem; }
.claims li { grid-template-columns: 1.7rem minmax(0, 1fr) 17rem 7.5rem; gap: 0.3rem 1.2rem; align-items: start; }
.claim::first-letter { text-transform: none; }
.claim p { margin: 0.2rem 0 0; }
.sides { font-size: 0.9rem; display: grid; gap: 0.15rem; }
.sides div { display: grid; grid-template-columns: 3.2rem 1fr; gap: 0.4rem; }
.sides dt { font-weight: 400; color: var(--muted); }
.sides dd { font-variant-numeric: lining-nums tabular-nums; }
.verdict { font-weight: 600; font-size: 0.9rem; padding-top: 0.05rem; }
.holds .verdict { color: var(--good); }
.fails .verdict { color: var(--bad); }
.undecided .mark { background: var(--line); color: var(--ink); }
.undecided .verdict { color: var(--muted); }
.stamp { display: inline-block; border: 2px solid var(--bad); color: var(--bad); border-radius: 0.3rem; padding: 0.1rem 0.7rem;
  font-weight: 700; letter-spacing: 0.06em; text-transform: uppercase; font-size: 0.82rem; margin: 0 0.8rem 0.4rem 0; }
.figure { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1.8rem 2.2rem; align-items: start; background: var(--card);
  border: 1px solid var(--line); border-radius: 0.7rem; padding: 1.3rem 1.5rem 1.5rem; }
.figure > :is(.legend, .wide, figcaption) { grid-column: 1 / -1; }
.figure > figcaption { color: var(--muted); font-size: 0.95rem; line-height: 1.55; }
.panel { min-width: 0; }
.panel .scroll { margin-bottom: 0; }
.panel.alone { grid-column: 1 / -1; width: 100%; max-width: 34rem; margin: 0 auto; }
.panel h3 { margin: 0 0 0.5rem; font-size: 1rem; line-height: 1.35; }
.axis { color: var(--muted); font-size: 0.8rem; line-height: 1.35; margin: 0 0 0.3rem; }
.axis.right { text-align: right; margin: 0.1rem 0 0 auto; }
.legend { display: flex; flex-wrap: wrap; gap: 0.3rem 1.3rem; border: 0; padding: 0; margin: 0; min-width: 0; font-size: 0.9rem; }
.legend label { display: flex; align-items: center; gap: 0.45rem; cursor: pointer; line-height: 1.35; padding: 0.15rem 0; position: relative; }
.legend input { position: absolute; opacity: 0; width: 100%; height: 100%; margin: 0; cursor: pointer; }
.legend input:not(:checked) ~ span { text-decoration: line-through; color: var(--muted); }
.legend input:not(:checked) ~ .key { opacity: 0.3; }
.key { width: 44px; height: 16px; flex: none; }
.chart { position: relative; }
.chart > svg { display: block; width: 100%; height: auto; overflow: visible; }
.chart text { font: 11.5px var(--sans); fill: var(--muted); font-variant-numeric: lining-nums tabular-nums; }
.wide .chart text { font-size: 8.2px; } .wide .line { stroke-width: 1.5; }
.chart .end { text-anchor: end; } .chart .middle { text-anchor: middle; }
.chart .group { fill: var(--ink); font-weight: 600; } .chart .value { fill: var(--ink); }
.halo { paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }
.grid, .tick { stroke: var(--line); fill: none; } .base, .level { stroke: var(--muted); fill: none; }
.level { stroke-dasharray: 5 4; }
.s use { fill: var(--c); stroke: var(--card); stroke-width: 1px; }
.s rect { fill: var(--c); }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.whisker { fill: none; stroke: var(--c); stroke-width: 1.5; } .whisker.over { stroke: var(--ink); }
.band { fill: var(--c); opacity: 0.16; }
.v1 .line { stroke-dasharray: 6 4; } .v2 .line { stroke-dasharray: 1 4; } .v3 .line { stroke-dasharray: 9 3 2 3; }
.dashed .line { stroke-dasharray: 6 4; }
:is(.v1, .v3) use { fill: var(--card); stroke: var(--c); stroke-width: 1.6px; }
.ring { fill: none; stroke: var(--ink); stroke-width: 1.6; pointer-events: none; }
.tip { position: absolute; z-index: 2; pointer-events: none; max-width: min(19rem, 100%); padding: 0.45rem 0.7rem; background: var(--card); color: var(--ink);
  border: 1px solid var(--muted); border-radius: 0.4rem; font-size: 0.82rem; line-height: 1.4; box-shadow: 0 3px 12px rgb(0 0 0 / 0.16);
  font-variant-numeric: lining-nums tabular-nums; }
.tip[hidden] { display: none; }
.panel details, .about details { margin-top: 0.4rem; }
tbody th:first-child { min-width: 0; padding-left: 0.9rem; text-align: left; }
.heat { --strength: 58%; width: auto; }
.heat td { text-align: center; border-left: 1px solid var(--card); padding: 0.6rem 0.7rem; min-width: 4rem; }
.heat thead th:not(:first-child) { text-align: center; } .heat thead th:first-child { max-width: 9rem; }
.scroll + .quiet { margin: 0.5rem 0 0; }
.heat .above { background: color-mix(in srgb, var(--sgtm) calc(var(--v) * var(--strength)), transparent); }
.heat .below { background: color-mix(in srgb, var(--data-filter) calc(var(--v) * var(--strength)), transparent); }
.none { color: var(--muted); }
.cut { display: flex; gap: 2px; min-width: 11rem; }
.split td:nth-child(2) { width: 45%; } .split :is(td, th):is(:nth-child(2), :last-child) { text-align: left; }
.part { display: inline-block; height: 1.05rem; min-width: 3px; border-radius: 2px; flex-basis: 0; background: var(--p); }
.p0 { --p: var(--part-0); } .p1 { --p: repeating-linear-gradient(45deg, var(--part-1) 0 4px, var(--card) 4px 6px); } .p2 { --p: var(--part-2); }
.p3 { --p: repeating-linear-gradient(-45deg, var(--part-3) 0 3px, var(--card) 3px 5px); } .p4 { --p: var(--part-1); } .p5 { --p: var(--part-3); }
:root { --part-0: #8a929c; --part-1: #0072b2; --part-2: #d55e00; --part-3: #a0569b; }
.parts { list-style: none; display: flex; flex-wrap: wrap; gap: 0.3rem 1.4rem; padding: 0; margin: 0 0 0.8rem; font-size: 0.9rem; }
.parts .part { width: 1.6rem; margin-right: 0.5rem; vertical-align: -0.15rem; }
summary mark { color: var(--ink); }
.about { margin-top: 1rem; }
.about > p { margin-bottom: 0.2rem; }
code { font: 0.92em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) {
  :root { --part-0: #8d96a1; --part-1: #56b4e9; --part-2: #f28c3a; --part-3: #d795d2; }
  .heat { --strength: 40%; }
}
@media (max-width: 48rem) {
  .figure { grid-template-columns: minmax(0, 1fr); padding: 1rem 0.9rem 1.2rem; }
  .claims li { grid-template-columns: 1.7rem minmax(0, 1fr); }
  .claims li > :not(.mark) { grid-column: 2; }
}
@media (max-width: 40rem) { .figure { margin: 0 -0.5rem; } .chart text { font-size: 12.5px; } .wide .chart text { font-size: 14.5px; } .contents li { grid-template-columns: 5.6rem 1fr; } }
@media print {
  .figure, .claims li { break-inside: avoid; } .figure:has(.wide) { break-inside: auto; } .scroll { max-height: none !important; }
  .tip, .contents { display: none; } h2, h3 { break-after: avoid; }
}
"""
