"""Plots: text files in `plots/`, each a cast and a sequence of beats with several wordings in both languages.

A plot file opens with its cast (`hero: children`, a role and the table in `words.txt` it is drawn from) and with its
turns (`turns: ladder wind`): of every line of turns, a story takes one word. `both: hero & friend` is a role for the
sake of agreement: "juntos" or "juntas". Then come the beats:

    == <ladder> ?      a new paragraph (`--` would go on with the last one), only in the turn "ladder", left out at times
    English wording, with [inner|private] choices
    Spanish wording, con las mismas opciones [interiores|privadas]

Wordings stand in pairs of lines; one that begins with `<ladder>` is for that turn only. In the text, ` / ` begins a
new paragraph, and Spanish speech (—) always stands in paragraphs of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

from excise.data.story.grammar import Entries, Word, together
from excise.data.story.words import TABLES

FOLDER = Path(__file__).parent / "plots"
CHOICE = re.compile(r"\[([^\]]*)\]")
GUARD = re.compile(r"<([a-z ]+)>\s*")
SKIPPED_SHARE = 0.6
Option = TypeVar("Option")


class Pattern(NamedTuple):
    """One wording of a beat, with all inner choices made, as two format strings."""

    english: str
    spanish: str
    opens_with_speech: bool
    ends_with_speech: bool


@dataclass(frozen=True)
class Beat:
    """Something that happens, in several wordings; each wording is a tuple of patterns that differ in a word or two."""

    wordings: tuple[tuple[Pattern, ...], ...]
    new_paragraph: bool
    optional: bool


@dataclass(frozen=True)
class Plot:
    """A cast and, for every combination of turns, the beats that tell it."""

    name: str
    roles: tuple[tuple[str, Entries], ...]
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    courses: tuple[tuple[Beat, ...], ...]


class Draft(NamedTuple):
    """A story with everything decided and nothing written yet."""

    separators: list[str]
    patterns: list[Pattern]
    english_cast: dict[str, Word]
    spanish_cast: dict[str, Word]

    def english(self) -> str:
        cast = self.english_cast
        pieces = zip(self.separators, self.patterns, strict=True)
        return "".join([separator + pattern.english.format_map(cast) for separator, pattern in pieces])

    def spanish(self) -> str:
        cast = self.spanish_cast
        pieces = zip(self.separators, self.patterns, strict=True)
        return "".join([separator + pattern.spanish.format_map(cast) for separator, pattern in pieces])


def pick(rng: Random, options: tuple[Option, ...]) -> Option:
    """One of the options; `random()` is the only method whose sequence Python promises to keep."""
    return options[int(rng.random() * len(options))]


def draft(plot: Plot, rng: Random) -> Draft:
    """Decides one story of the plot."""
    english_cast, spanish_cast = _draw_cast(plot, rng)
    separators: list[str] = []
    patterns: list[Pattern] = []
    for beat in pick(rng, plot.courses):
        if beat.optional and rng.random() < SKIPPED_SHARE:
            continue
        pattern = pick(rng, pick(rng, beat.wordings))
        separators.append(_separator(patterns[-1] if patterns else None, pattern, beat.new_paragraph))
        patterns.append(pattern)
    return Draft(separators, patterns, english_cast, spanish_cast)


def _draw_cast(plot: Plot, rng: Random) -> tuple[dict[str, Word], dict[str, Word]]:
    english: dict[str, Word] = {}
    spanish: dict[str, Word] = {}
    taken: list[Word] = []
    for role, entries in plot.roles:
        entry = pick(rng, entries)
        while entry.english in taken:
            entry = pick(rng, entries)
        taken.append(entry.english)
        english[role], spanish[role] = entry.english, entry.spanish
    for group, members in plot.groups:
        spanish[group] = together([spanish[member] for member in members])
    return english, spanish


def _separator(previous: Pattern | None, pattern: Pattern, new_paragraph: bool) -> str:
    if previous is None:
        return ""
    return "\n" if new_paragraph or previous.ends_with_speech or pattern.opens_with_speech else " "


@cache
def plots() -> tuple[Plot, ...]:
    """All plots, in the order of their names."""
    return tuple(read_plot(path) for path in sorted(FOLDER.glob("*.txt")))


def read_plot(path: Path) -> Plot:
    """The plot that a file describes."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    starts = [index for index, line in enumerate(lines) if line.startswith(("==", "--"))]
    header = [line.split(": ", 1) for line in lines[: starts[0]]]
    sections = [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    turns = [words.split() for key, words in header if key == "turns"]
    return Plot(
        name=path.stem,
        roles=tuple((role, TABLES[table]) for role, table in header if role != "turns" and "&" not in table),
        groups=tuple((role, tuple(members.split(" & "))) for role, members in header if "&" in members),
        courses=tuple(_course(sections, frozenset(taken)) for taken in product(*turns)),
    )


def _course(sections: list[list[str]], taken: frozenset[str]) -> tuple[Beat, ...]:
    return tuple(_beat(section, taken) for section in sections if _allowed(section[0], taken))


def _allowed(line: str, taken: frozenset[str]) -> bool:
    guard = GUARD.search(line)
    return guard is None or not taken.isdisjoint(guard[1].split())


def _beat(section: list[str], taken: frozenset[str]) -> Beat:
    head, *lines = section
    assert len(lines) % 2 == 0, f"a wording lacks its translation: {section}"
    pairs = zip(lines[::2], lines[1::2], strict=True)
    wordings = tuple(_patterns(english, spanish) for english, spanish in pairs if _allowed(english, taken))
    assert wordings, f"a beat has no wording for {sorted(taken)}: {section}"
    return Beat(wordings, new_paragraph=head.startswith("=="), optional=head.endswith("?"))


def _patterns(english: str, spanish: str) -> tuple[Pattern, ...]:
    english_choices, spanish_choices = _choices(GUARD.sub("", english)), _choices(spanish)
    counts = [len(options) for options in english_choices]
    assert counts == [len(options) for options in spanish_choices], f"the choices differ: {english} {spanish}"
    return tuple(
        _pattern(_chosen(english_choices, indices), _chosen(spanish_choices, indices))
        for indices in product(*(range(count) for count in counts))
    )


def _choices(text: str) -> list[list[str]]:
    """The text cut at its brackets: a list of the options at every place, fixed text being a single option."""
    return [piece.split("|") if index % 2 else [piece] for index, piece in enumerate(CHOICE.split(text))]


def _chosen(choices: list[list[str]], indices: tuple[int, ...]) -> str:
    text = "".join(options[index] for options, index in zip(choices, indices, strict=True))
    return text.replace(" / ", "\n")


def _pattern(english: str, spanish: str) -> Pattern:
    last_paragraph = spanish.rsplit("\n", 1)[-1]
    return Pattern(english, spanish, spanish.startswith("—"), last_paragraph.startswith("—"))
