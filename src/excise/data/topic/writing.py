"""Articles: a shape, one to three things, some of what is known of them, and asides about what they lead to.

The asides are what makes the labels noisy: an article about a remedy says a word about the plant it is made from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import NamedTuple

from excise.data.topic.kinds import Wording
from excise.data.topic.world import Fact, Known, Thing, capitalised, pick, shuffled, world

PRONOUN_SHARE, NOUN_SHARE = 0.5, 0.2
FOREIGN_ASIDE_SHARE, OWN_ASIDE_SHARE = 0.6, 0.15
SKIPPED_FILLER_SHARE = 0.5
MOST_DRAWS = 5
FEWEST_WORDS, MOST_WORDS = 80, 300


class Draft(NamedTuple):
    """An article that belongs to no split yet, and the facts it states."""

    title: str
    text: str
    facts: tuple[Fact, ...]


@dataclass
class Page:
    """What is written so far, so that nothing is said twice; the world holds every fact once, hence its `id` as key."""

    rng: Random
    stated: dict[int, Fact] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)

    def paragraph(self, facts: Sequence[Known], reference: str = "name") -> list[str]:
        """Sentences about one thing; the first refers to it as told, the others by name, noun or pronoun."""
        sentences: list[str] = []
        for known in facts:
            sentences.append(self.sentence(known, reference))
            aside = self.aside(known)
            sentences += aside
            reference = "name" if aside else self.reference()
        return sentences

    def sentence(self, known: Known, reference: str) -> str:
        """One fact in one of its wordings."""
        self.stated[id(known.fact)] = known.fact
        relation = known.relation
        wording = pick(self.rng, self.unused(relation.named if reference == "name" else relation.wordings))
        if reference == "pronoun" and wording.short is not None:
            return wording.short.format_map(known.subject.forms["pronoun"] | known.words)
        form = known.subject.forms["noun" if reference == "pronoun" else reference]
        return wording.full.format_map(form | known.words)

    def unused(self, wordings: Sequence[tuple[Wording, ...]]) -> tuple[Wording, ...]:
        """A wording that this article has not had yet, if a few draws find one."""
        for _ in range(MOST_DRAWS):
            wording = pick(self.rng, wordings)
            if id(wording) not in self.used:
                break
        self.used.add(id(wording))
        return wording

    def reference(self) -> str:
        draw = self.rng.random()
        return "pronoun" if draw < PRONOUN_SHARE else "noun" if draw < PRONOUN_SHARE + NOUN_SHARE else "name"

    def aside(self, known: Known) -> list[str]:
        """At times a sentence about the object, if it is a thing with an entry of its own."""
        target = known.target
        if target is None:
            return []
        foreign = target.kind.category != known.fact.category
        if self.rng.random() >= (FOREIGN_ASIDE_SHARE if foreign else OWN_ASIDE_SHARE):
            return []
        news = pick(self.rng, tuple(target.known.values()))
        if news.target is known.subject or id(news.fact) in self.stated:
            return []
        return [self.sentence(news, "name")]

    def filler(self, thing: Thing, section: str, reference: str) -> list[str]:
        """At times a sentence that states nothing."""
        if self.rng.random() < SKIPPED_FILLER_SHARE:
            return []
        return [pick(self.rng, thing.kind.fillers[section]).format_map(thing.forms[reference])]

    def some(self, thing: Thing, fewest: int, most: int) -> list[Known]:
        """A few things to say about the thing, in random order, beside what it is."""
        others = [known for name, known in thing.known.items() if name != "is"]
        return shuffled(self.rng, others)[: fewest + int(self.rng.random() * (most - fewest + 1))]


Shape = Callable[[Page, Sequence[Thing]], tuple[str, list[str]]]


def draft(category: str, rng: Random) -> Draft:
    """One article of the category, of a length that suits an encyclopaedia for children."""
    while True:
        page = Page(rng)
        title, paragraphs = pick(rng, SHAPES)(page, pick(rng, _things_of(category)))
        text = "\n\n".join(paragraphs)
        if FEWEST_WORDS <= len(text.split()) <= MOST_WORDS:
            return Draft(title, text, tuple(page.stated.values()))


@cache
def _things_of(category: str) -> tuple[tuple[Thing, ...], ...]:
    return tuple(things for things in world().values() if things[0].kind.category == category)


def _title(thing: Thing) -> str:
    """The name without its article, unless that belongs to the name: "Velmoth", but "The Salt War"."""
    bare = thing.name.removeprefix("the ")
    return capitalised(bare if bare[0].islower() else thing.name)


def _portrait(page: Page, things: Sequence[Thing]) -> tuple[str, list[str]]:
    """One thing in two or three paragraphs."""
    thing = pick(page.rng, things)
    facts = page.some(thing, 5, 8)
    cut = 1 + int(page.rng.random() * 3)
    opening = page.filler(thing, "open", "name") + page.paragraph([thing.known["is"], *facts[:cut]])
    bodies = [facts[cut:]] if len(facts) - cut < 4 else [facts[cut : cut + 3], facts[cut + 3 :]]
    paragraphs = [opening, *(page.paragraph(body) for body in bodies if body)]
    paragraphs[-1] += page.filler(thing, "close", "noun")
    return _title(thing), [" ".join(sentences) for sentences in paragraphs]


def _plunge(page: Page, things: Sequence[Thing]) -> tuple[str, list[str]]:
    """One thing in a single paragraph that begins in the middle of things."""
    thing = pick(page.rng, things)
    first, *facts = page.some(thing, 5, 7)
    sentences = page.paragraph([first]) + page.paragraph([thing.known["is"], *facts])
    return _title(thing), [" ".join(sentences + page.filler(thing, "close", "noun"))]


def _questions(page: Page, things: Sequence[Thing]) -> tuple[str, list[str]]:
    """One thing in questions and answers."""
    thing = pick(page.rng, things)
    paragraphs = [" ".join(page.filler(thing, "open", "name") + page.paragraph([thing.known["is"]]))]
    for known in page.some(thing, 5, 6):
        question = known.relation.question.format_map(thing.forms["name"])
        paragraphs.append(" ".join([question, *page.paragraph([known], page.reference())]))
    return f"Questions about {thing.name}", paragraphs


def _list(page: Page, things: Sequence[Thing]) -> tuple[str, list[str]]:
    """One thing in numbered points."""
    thing = pick(page.rng, things)
    facts = page.some(thing, 5, 6)
    number = {5: "Five", 6: "Six", 7: "Seven"}[len(facts)]
    opening = " ".join(page.filler(thing, "open", "name") + page.paragraph([thing.known["is"]]))
    points = [f"{i}. " + " ".join(page.paragraph([known], page.reference())) for i, known in enumerate(facts, start=1)]
    return f"{number} things to know about {thing.name}", [opening, "\n".join(points)]


def _pair(page: Page, things: Sequence[Thing]) -> tuple[str, list[str]]:
    """Two things of a kind, side by side."""
    one, other = shuffled(page.rng, things)[:2]
    names = {"a": one.name, "b": other.name, "A": capitalised(one.name), "B": capitalised(other.name)}
    opening = pick(page.rng, one.kind.fillers["pair"]).format_map(names)
    bodies = [page.paragraph([thing.known["is"], *page.some(thing, 3, 4)]) for thing in (one, other)]
    return f"{capitalised(one.name)} and {other.name}", [opening, *(" ".join(body) for body in bodies)]


def _survey(page: Page, things: Sequence[Thing]) -> tuple[str, list[str]]:
    """Three things of a kind, a few words about each."""
    chosen = shuffled(page.rng, things)[:3]
    opening = pick(page.rng, chosen[0].kind.fillers["survey"])
    bodies = [page.paragraph([thing.known["is"], *page.some(thing, 1, 3)]) for thing in chosen]
    several = chosen[0].kind.settings["several"]
    title = pick(page.rng, (f"Three {several}", f"Some {several} worth knowing", f"A few {several}"))
    return title, [opening, *(" ".join(body) for body in bodies)]


SHAPES: tuple[Shape, ...] = (_portrait, _portrait, _plunge, _questions, _list, _pair, _survey)
