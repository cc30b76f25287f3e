"""The claims about a figure: the paper's number beside ours, a verdict for each, and how many of them hold."""

from collections.abc import Iterable
from html import escape

from excise.evals.figure import FigureResults, PaperClaim
from excise.report.html import definitions, join
from excise.report.numbers import estimate, unbroken

STAMP = "pipeline check only"
VERDICTS = {
    True: ("holds", "✓", "holds"),
    False: ("fails", "✗", "does not hold"),
    None: ("undecided", "?", "undecided"),
}
"""By what a claim's `holds` is: class, mark and words."""
OF_CHECKS = {True: "as built", False: "not as built", None: "not checked"}


def counts(claims: Iterable[PaperClaim]) -> dict[bool | None, int]:
    """How many hold, do not, and are undecided."""
    found = [claim.holds for claim in claims]
    return {holds: found.count(holds) for holds in VERDICTS}


def has_interval(claim: PaperClaim) -> bool:
    return claim.ours is not None and not (claim.ours.low is None and claim.ours.high is None)


def has_one_seed(figure: FigureResults) -> bool:
    return len({run.seed for run in figure.runs}) == 1


def rests_on_little(claim: PaperClaim, figure: FigureResults) -> bool:
    """Whether a verdict is that of one seed, or has no interval."""
    return claim.holds is not None and (has_one_seed(figure) or not has_interval(claim))


def tally(figure: FigureResults) -> str:
    """What became of the claims about a figure, in a few words."""
    found = counts(claim for claim in figure.claims if not claim.check)
    words = {True: "holds" if found[True] == 1 else "hold", None: "undecided"}
    words[False] = "does not hold" if found[False] == 1 else "do not hold"
    said = [f"{n} {words[holds]}" for holds, n in found.items() if n]
    said += ["one seed"] if said and has_one_seed(figure) else []
    checks = [claim.holds is True for claim in figure.claims if claim.check]
    said += [f"{sum(checks)} of {len(checks)} as built"] if checks else []
    return " · ".join([*said, *([STAMP] if figure.pipeline_check_only else [])])


def claims_of(figure: FigureResults) -> str:
    """All of them, folded under their tally."""
    if not figure.claims:
        return ""
    lines = join(_claim(claim, figure) for claim in figure.claims)
    summary = f"<summary><b>Claims:</b> {tally(figure)}</summary>"
    return f'<details class="claimed">{summary}\n<ul class="claims">\n{lines}</ul>\n</details>\n'


def _claim(claim: PaperClaim, figure: FigureResults) -> str:
    kind, mark, _ = VERDICTS[claim.holds]
    ours = unbroken(estimate(claim.ours, claim.unit, digits=2)) if claim.ours else "not measured"
    why = f'<p class="quiet">{escape(unbroken(claim.why))}</p>' if claim.why else ""
    sides = definitions({"Paper": escape(claim.paper), "Ours": f"<b>{escape(ours)}</b>"})
    kind = "undecided" if figure.pipeline_check_only and not claim.check else kind
    return (
        f'<li class="{kind}"><span class="mark" aria-hidden="true">{mark}</span><div class="claim">{escape(claim.text)}{why}</div>'
        f'<dl class="sides">{sides}</dl><span class="verdict">{_verdict(claim, figure)}</span></li>'
    )


def _verdict(claim: PaperClaim, figure: FigureResults) -> str:
    if claim.check:
        return OF_CHECKS[claim.holds]
    words = VERDICTS[claim.holds][2]
    if figure.pipeline_check_only:
        return f"{words} ({STAMP})"
    if not rests_on_little(claim, figure):
        return words
    return f"{words}, {'on one seed' if has_one_seed(figure) else 'without an interval'}"
