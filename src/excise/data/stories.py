"""The embedded corpus: parallel English and Spanish children's stories, in the spirit of TinyStories.

It plays the part of the paper's bilingual TinyStories (section 4) where nothing may be downloaded: in the demo, the
tests and the docs. All text is ours; the plots and words are in `story/`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Literal, get_args

from excise.data.story.plots import Plot, draft, plots

Split = Literal["train", "test"]
TEST_SHARE = 0.1


@dataclass(frozen=True)
class Story:
    """One story, told in two languages."""

    english: str
    spanish: str


def stories(n: int, *, seed: int, split: Split) -> list[Story]:
    """`n` different stories; the same seed gives the same ones everywhere, and the splits never share one."""
    if split not in get_args(Split):
        raise ValueError(f"split={split!r} is not a part of the stories; use one of {', '.join(get_args(Split))}")
    rng = Random(f"stories {seed}")
    told: dict[str, Story] = {}
    for plot in islice(_plots_in_turn(rng), n):
        story = _tell(plot, rng, split, told)
        told[story.english] = story
    return list(told.values())


def _plots_in_turn(rng: Random) -> Iterator[Plot]:
    """Plots in random order, each told once before any is told again, so that neighbours differ."""
    while True:
        yield from sorted(plots(), key=lambda _: rng.random())


def _tell(plot: Plot, rng: Random, split: Split, told: Container[str]) -> Story:
    """A story of the plot that belongs to the split and is not yet told."""
    while True:
        story = draft(plot, rng)
        english = story.english()
        if split_of(english) == split and english not in told:
            return Story(english, story.spanish())


def split_of(english: str) -> Split:
    """The split a story belongs to, decided by its text alone, so that no seed can put it in the other one."""
    digest = hashlib.blake2b(english.encode(), digest_size=4).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**32 else "train"
