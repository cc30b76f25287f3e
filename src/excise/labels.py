"""Labels of data and parts of models: the words that everything below is written in (paper, section 3.1).

A *label* says what is known of a document: `unlabeled`, `retain`, or the name of a domain, which makes it forget data
of that domain. A *part* is a set of whole parameters: `retain`, `joint`, or `forget/<domain>`, the removable module of
that domain.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import cache

UNLABELED = "unlabeled"
RETAIN = "retain"
JOINT = "joint"
GROUPS = ("adjacent", "general")
"""Sets of test documents near the domains and far from them, both within the retain data."""

UNLABELED_ID = 0
RETAIN_ID = 1
FIRST_DOMAIN_ID = 2
N_DOMAINS = 126
"""At most: labels are numbered in 8 bits with a sign."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the known word nearest to a misspelt one, and all of them."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    listed = ", ".join(names) or "none"
    return f"did you mean {close[0]!r}? (known: {listed})" if close else f"known: {listed}"


def forget_part(domain: str) -> str:
    return f"forget/{domain}"


@cache
def why_no_label(word: str) -> str:
    """What keeps a word from being a label; empty where nothing does."""
    if word in (UNLABELED, RETAIN):
        return ""
    try:
        check_domains([word])
    except ValueError as error:
        return str(error)
    return ""


def check_domains(domains: Sequence[str]) -> None:
    """Domains become file names and parameter names, and must not be mistaken for labels."""
    for domain in domains:
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", domain):
            raise ValueError(
                f"domain {domain!r} must be lower-case letters, digits, '-' or '_', starting with a letter"
            )
        if domain in (UNLABELED, RETAIN, JOINT, *GROUPS):
            raise ValueError(f"a domain cannot be called {domain!r}, which is a label, part or set of its own")
    if len(set(domains)) != len(domains):
        raise ValueError(f"domains must differ, got {', '.join(domains)}")
    if len(domains) > N_DOMAINS:
        raise ValueError(f"{len(domains)} domains are more than a model can have; name at most {N_DOMAINS}")


def label_names(domains: Sequence[str]) -> tuple[str, ...]:
    """All labels, in the order of their numbers."""
    return (UNLABELED, RETAIN, *domains)


def label_id(label: str, domains: Sequence[str]) -> int:
    names = label_names(domains)
    if label not in names:
        raise ValueError(f"unknown label {label!r}; {nearest(label, names)}")
    return names.index(label)


def parts_of(domains: Sequence[str]) -> tuple[str, ...]:
    """All parts that a model with these domains can have."""
    return (RETAIN, JOINT, *(forget_part(domain) for domain in domains))


def part_of(parameter_name: str) -> str:
    """The part of a parameter, which is the last word of its name; a parameter without one is an error."""
    part = parameter_name.rsplit(".", 1)[-1]
    if part not in (RETAIN, JOINT) and not part.startswith("forget/"):
        raise ValueError(
            f"parameter {parameter_name!r} is in no part; store it in a ParameterDict keyed by "
            f"'{RETAIN}', '{JOINT}' or 'forget/<domain>'"
        )
    return part
