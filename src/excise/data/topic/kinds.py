"""Kinds of things (creature, city, war): text files in `kinds/`, each with its names, its relations and their wordings.

A file opens with its settings (`category: biology`). `-- names` lists the things, one a line: "the velmoth | a moth",
after which `noun: war` or any other column may follow. `-- open`, `-- pair`, `-- survey` and `-- close` hold sentences
that state nothing. Then come the relations:

    == eats = fallen berries; earthworms      the objects it is dealt, here written out
    ? What does {name} eat?                   the question that asks for the object
    {S} eats {o}[.| and little else.]         wordings, with [inner|choices]

The objects may also be `@habitat` (things of another kind), `@creature ^ lives in` (whatever lives in this thing),
`grows in > shelters` (the object's object), `row size` (a column of the names) or `chronicle` (see `world.py`).
A wording writes {S}, {s} or {x} for the subject at the start of a sentence, within it, or as an object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "kinds"
CHOICE = re.compile(r"\[([^\]]*)\]")
THE_CALL_OF = re.compile(r"\b([Tt])he ([a-z]+(?: (?!the )[a-z]+){0,3}) of \{x\}")
AFTER_PREPOSITION = re.compile(
    r"\b(?:of|in|on|at|for|to|by|with|without|from|against|about|after|before|under|past|through|than|into|near|"
    r"towards|as|between|among|over|down) \{x\}",
    re.IGNORECASE,
)
SUBJECT = re.compile(r"\{(?:S|s|x|Own|own|Name|name)\}")
OBJECT_FIRST = re.compile(r"[^{]*\{[oO]\}.*\{(?:S|s|x|it|its|Its|own|Own)\}")
Fillers = Mapping[str, tuple[str, ...]]


class Wording(NamedTuple):
    """A format string, and the one to use where the subject is a pronoun ("its call"), unless none sounds right."""

    full: str
    short: str | None


@dataclass(frozen=True)
class Relation:
    """What the world knows of every thing of a kind; each wording is a tuple of variants that differ in a word or two.

    Some wordings only make sense where the subject is clear ("A grown one is as big as a loaf"); `named` has the others.
    """

    name: str
    source: str
    question: str
    wordings: tuple[tuple[Wording, ...], ...]
    named: tuple[tuple[Wording, ...], ...]


@dataclass(frozen=True)
class Kind:
    """One file: a sort of thing and all ways to speak about it."""

    name: str
    settings: Mapping[str, str]
    rows: tuple[tuple[str, str, Mapping[str, str]], ...]
    fillers: Fillers
    relations: tuple[Relation, ...]

    @property
    def category(self) -> str:
        return self.settings["category"]


@cache
def kinds() -> tuple[Kind, ...]:
    """All kinds, in the order of their names."""
    return tuple(read_kind(path) for path in sorted(FOLDER.glob("*.txt")))


def read_kind(path: Path) -> Kind:
    """The kind described in one file."""
    head, *sections = re.split(r"^(?=-- |== )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    blocks = {section[3:].split("\n", 1)[0]: _lines(section)[1:] for section in sections if section.startswith("--")}
    names = blocks.pop("names")
    return Kind(
        path.stem,
        dict(_pair(line) for line in _lines(head)),
        tuple(_row(line) for line in names),
        {name: tuple(text for line in lines for text in variants(line)) for name, lines in blocks.items()},
        tuple(_relation(section) for section in sections if section.startswith("==")),
    )


def variants(text: str) -> tuple[str, ...]:
    """The text with every combination of its [inner|choices]."""
    pieces = [piece.split("|") if i % 2 else [piece] for i, piece in enumerate(CHOICE.split(text))]
    return tuple("".join(chosen) for chosen in product(*pieces))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _pair(text: str) -> tuple[str, str]:
    key, value = text.split(": ", 1)
    return key, value


def _row(line: str) -> tuple[str, str, dict[str, str]]:
    name, sort, *columns = line.split(" | ")
    return name, sort, dict(_pair(column) for column in columns)


def _relation(section: str) -> Relation:
    head, question, *wordings = _lines(section)
    name, _, source = head.removeprefix("== ").partition(" = ")
    assert question.startswith("? "), f"{name!r} opens with {question!r} instead of its question"
    each = tuple(tuple(_wording(variant) for variant in variants(line)) for line in wordings)
    named = tuple(wording for wording in each if SUBJECT.search(wording[0].full))
    return Relation(name, source, question.removeprefix("? "), each, named)


def _wording(full: str) -> Wording:
    short = THE_CALL_OF.sub(lambda match: ("{Its}" if match[1] == "T" else "{its}") + " " + match[2], full)
    unclear = AFTER_PREPOSITION.search(short) or OBJECT_FIRST.match(short)
    return Wording(full, None if unclear else short)
