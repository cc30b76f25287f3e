"""The embedded encyclopaedia: articles about one invented world, in eight categories.

It plays the part of the paper's Wikipedia (section 5) where nothing may be downloaded: biology is to be forgotten,
medicine, chemistry and environment are adjacent to it, the rest is general knowledge. Articles differ in what they
select and how they say it, never in what is true, and those of one category mention facts of its neighbours. All text
is ours; the tables of the world are in `topic/`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Literal, get_args

from excise.data.topic.world import Fact, Known, facts_of, objects_of, pick, shuffled
from excise.data.topic.writing import Draft, draft

Split = Literal["train", "test"]
FORGET: tuple[str, ...] = ("biology",)
ADJACENT: tuple[str, ...] = ("medicine", "chemistry", "environment")
GENERAL: tuple[str, ...] = ("culture", "geography", "history", "military")
CATEGORIES: tuple[str, ...] = FORGET + ADJACENT + GENERAL
N_CHOICES = 4


@dataclass(frozen=True)
class Article:
    """One entry of the encyclopaedia."""

    id: str
    title: str
    category: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question about one fact; `answer` is the index of the one choice that is true."""

    question: str
    choices: tuple[str, ...]
    answer: int
    category: str


def articles(n: int, *, seed: int, split: Split) -> Iterator[Article]:
    """`n` articles in even shares of the categories; the same seed gives the same ones, and the splits share none."""
    return (article for article, _ in articles_with_facts(n, seed=seed, split=split))


def articles_with_facts(n: int, *, seed: int, split: Split) -> Iterator[tuple[Article, tuple[Fact, ...]]]:
    """The same articles, each with the facts that it states."""
    if split not in get_args(Split):
        raise ValueError(f"split={split!r} is not a part of the topics; use one of {', '.join(get_args(Split))}")
    return _articles(n, seed, split)


def facts(category: str) -> list[Fact]:
    """All that is true of the world in a category."""
    _check(category)
    return [known.fact for known in facts_of(category)]


def questions(n: int, *, seed: int) -> Iterator[Question]:
    """`n` multiple choice questions in even shares of the categories; the wrong choices are of the same kind."""
    rng = Random(f"topic questions {seed}")
    for category in islice(_categories_in_turn(rng), n):
        yield _ask(pick(rng, facts_of(category)), rng)


def split_of(text: str) -> Split:
    """The split an article belongs to, decided by its text alone, so that no seed can put it in the other one.

    Half of all possible articles are for each split: there is no end of them, and drafts are thrown away least often.
    """
    return "test" if hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % 2 else "train"


def _articles(n: int, seed: int, split: Split) -> Iterator[tuple[Article, tuple[Fact, ...]]]:
    rng = Random(f"topics {seed} {split}")
    for i, category in enumerate(islice(_categories_in_turn(rng), n)):
        written = _draft(category, rng, split)
        yield Article(f"topics-{split}-{seed}-{i:06}", written.title, category, written.text), written.facts


def _draft(category: str, rng: Random, split: Split) -> Draft:
    while True:
        written = draft(category, rng)
        if split_of(written.text) == split:
            return written


def _categories_in_turn(rng: Random) -> Iterator[str]:
    """Categories in random order, each once before any comes again."""
    while True:
        yield from shuffled(rng, CATEGORIES)


def _ask(known: Known, rng: Random) -> Question:
    others = [one for one in objects_of(known.subject.kind.name, known.relation.name) if one not in known.also_true]
    wrong = shuffled(rng, others)[: N_CHOICES - 1]
    choices = tuple(shuffled(rng, [known.fact.object, *wrong]))
    text = known.relation.question.format_map(known.subject.forms["name"])
    return Question(text, choices, choices.index(known.fact.object), known.fact.category)


def _check(category: str) -> None:
    if category not in CATEGORIES:
        raise ValueError(f"category={category!r} is not one of the topics; use one of {', '.join(CATEGORIES)}")
