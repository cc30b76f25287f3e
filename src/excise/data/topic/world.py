"""The one invented world: its things and what is true of them, dealt once from the tables and the same everywhere.

Every fact is a function of its subject and relation. Facts that mirror others are derived from them, never dealt
apart: the habitat shelters a creature that lives there. Whatever has a year stands in one chronicle: the first half of
the monarchs found the cities and build the fortresses, and wars and events come later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import NamedTuple, TypeVar

from excise.data.topic.kinds import Kind, Relation, kinds

FIRST_YEAR = 412
SHORTEST_REIGN, LONGEST_REIGN = 6, 31
LAST_RULE = "a council of nine elders"
Option = TypeVar("Option")


@dataclass(frozen=True)
class Fact:
    """Something that is true of the world, in the words of its tables."""

    subject: str
    relation: str
    object: str
    category: str


@dataclass(eq=False)
class Thing:
    """A creature, a city, a war: one entry of the encyclopaedia, and the ways a sentence may refer to it."""

    name: str
    kind: Kind
    row: Mapping[str, str]
    forms: dict[str, dict[str, str]]
    known: dict[str, Known] = field(default_factory=dict)


class Known(NamedTuple):
    """A fact with all that is needed to write it down; `target` is the object where it is a thing itself."""

    fact: Fact
    relation: Relation
    subject: Thing
    target: Thing | None
    words: dict[str, str]
    also_true: frozenset[str]


World = dict[str, tuple[Thing, ...]]
Objects = Sequence[Thing | str | None]


def pick(rng: Random, options: Sequence[Option]) -> Option:
    """One of the options; `random()` is the only method whose sequence Python promises to keep."""
    return options[int(rng.random() * len(options))]


def shuffled(rng: Random, options: Sequence[Option]) -> list[Option]:
    """The options in random order."""
    return sorted(options, key=lambda _: rng.random())


def capitalised(text: str) -> str:
    """The text with its first letter in upper case, the rest untouched."""
    return text[:1].upper() + text[1:]


@cache
def world() -> World:
    """All things of every kind, with everything that is known of them."""
    things = {kind.name: tuple(_thing(kind, *row) for row in kind.rows) for kind in kinds()}
    chronicle = _chronicle(things)
    relations = [(kind, relation) for kind in kinds() for relation in kind.relations]
    for kind, relation in sorted(relations, key=lambda pair: _stage(pair[1])):
        objects = chronicle.get((kind.name, relation.name)) or _objects(kind, relation, things)
        for subject, found in zip(things[kind.name], objects, strict=True):
            if found is not None:
                subject.known[relation.name] = _known(subject, relation, found, things)
    return things


@cache
def facts_of(category: str) -> tuple[Known, ...]:
    """Everything known in a category."""
    own = [thing for things in world().values() for thing in things if thing.kind.category == category]
    return tuple(known for thing in own for known in thing.known.values())


@cache
def objects_of(kind: str, relation: str) -> tuple[str, ...]:
    """The different objects that things of the kind have under the relation, in alphabetical order."""
    known = [thing.known[relation] for thing in world()[kind] if relation in thing.known]
    return tuple(sorted({one.fact.object for one in known}))


def _thing(kind: Kind, name: str, sort: str, row: Mapping[str, str]) -> Thing:
    noun = row.get("noun") or kind.settings.get("noun") or sort.split(" ", 1)[1]
    he, him, his = row.get("pronouns", kind.settings["pronouns"]).split()
    fixed = {"name": name, "Name": capitalised(name), "kind": noun, "it": he, "its": his, "Its": capitalised(his)}
    the_noun = f"these {noun}" if he == "they" else f"the {noun}"
    forms = {
        "name": fixed | _reference(name, name, f"{name}'s"),
        "noun": fixed | _reference(the_noun, the_noun, f"{the_noun}'s"),
        "pronoun": fixed | _reference(he, him, his),
    }
    return Thing(name, kind, {**row, "is": sort}, forms)


def _reference(subject: str, target: str, own: str) -> dict[str, str]:
    return {"s": subject, "S": capitalised(subject), "x": target, "own": own, "Own": capitalised(own)}


def _known(subject: Thing, relation: Relation, found: Thing | str, things: World) -> Known:
    text = found if isinstance(found, str) else found.name
    return Known(
        Fact(subject.name, relation.name, text, subject.kind.category),
        relation,
        subject,
        None if isinstance(found, str) else found,
        {"o": text, "O": capitalised(text)},
        frozenset(thing.name for thing in _mirrored(subject, relation, things)) | {text},
    )


def _stage(relation: Relation) -> int:
    """Mirrored facts follow those they mirror, and facts of facts come last."""
    return 2 if " > " in relation.source else 1 if " ^ " in relation.source else 0


def _objects(kind: Kind, relation: Relation, things: World) -> Objects:
    subjects, source = things[kind.name], relation.source
    if " > " in source:
        first, second = source.split(" > ")
        return [_target(_target(subject, first), second) for subject in subjects]
    if " ^ " in source:
        return [next(iter(_mirrored(subject, relation, things)), None) for subject in subjects]
    if source.startswith("row ") or not source:
        return [subject.row[source.removeprefix("row ") or "is"] for subject in subjects]
    rng = Random(f"world {kind.name} {relation.name}")
    if source.startswith("@"):
        return _deal(rng, things[source[1:]], len(subjects))
    return _deal(rng, source.split("; "), len(subjects))


def _mirrored(subject: Thing, relation: Relation, things: World) -> list[Thing]:
    """Everything that stands to the subject in the relation which this one mirrors; nothing if it mirrors none."""
    if " ^ " not in relation.source:
        return []
    kind, forward = relation.source.removeprefix("@").split(" ^ ")
    return [thing for thing in things[kind] if _target(thing, forward) is subject]


def _target(thing: Thing, relation: str) -> Thing:
    target = thing.known[relation].target
    assert target is not None, f"{relation!r} of {thing.name} is no thing"
    return target


def _deal(rng: Random, options: Sequence[Option], n: int) -> list[Option]:
    """`n` of the options, each one once before any comes again."""
    dealt: list[Option] = []
    while len(dealt) < n:
        dealt += shuffled(rng, options)
    return dealt[:n]


def _chronicle(things: World) -> dict[tuple[str, str], Objects]:
    """Years, and all that has to agree with them, by kind and relation."""
    rng = Random("world chronicle")
    monarchs, cities, fortresses, peoples = (things[kind] for kind in ("monarch", "city", "fortress", "people"))
    reigns = [SHORTEST_REIGN + int(rng.random() * (LONGEST_REIGN - SHORTEST_REIGN + 1)) for _ in monarchs]
    crowned = [FIRST_YEAR + sum(reigns[:i]) for i in range(len(reigns) + 1)]
    n_founders = len(monarchs) // 2
    later = [str(year) for year in range(crowned[n_founders], crowned[-1])]
    founders = [i * n_founders // len(cities) for i in range(len(cities))]
    attackers = _deal(rng, range(len(peoples)), len(things["war"]))
    defenders = [(i + 1 + int(rng.random() * (len(peoples) - 1))) % len(peoples) for i in attackers]
    return {
        ("monarch", "came to the throne in"): [str(year) for year in crowned[:-1]],
        ("monarch", "reigned for"): [f"{years} years" for years in reigns],
        ("monarch", "was followed by"): [*monarchs[1:], LAST_RULE],
        ("monarch", "lived in"): [
            pick(rng, [city for city, founder in zip(cities, founders, strict=True) if founder <= i])
            for i in range(len(monarchs))
        ],
        ("city", "was founded by"): [monarchs[i] for i in founders],
        ("fortress", "was built by"): [monarchs[i * n_founders // len(fortresses)] for i in range(len(fortresses))],
        ("war", "was begun by"): [peoples[i] for i in attackers],
        ("war", "was fought against"): [peoples[i] for i in defenders],
        ("war", "broke out in"): _deal(rng, later, len(things["war"])),
        ("event", "took place in the year"): _deal(rng, later, len(things["event"])),
    }
