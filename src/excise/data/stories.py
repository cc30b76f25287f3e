"""The embedded corpus: parallel English and Spanish children's stories, in the spirit of TinyStories.

It plays the part of the paper's bilingual TinyStories (section 4) where nothing may be downloaded: in the demo, the
tests and the docs. All text is ours; the plots and words are in `story/`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from excise.data.story.plots import draft, pick, plots

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
    while len(told) < n:
        story = draft(pick(rng, plots()), rng)
        english = story.english()
        if split_of(english) == split and english not in told:
            told[english] = Story(english, story.spanish())
    return list(told.values())


def split_of(english: str) -> Split:
    """The split a story belongs to, decided by its text alone, so that no seed can put it in the other one."""
    digest = hashlib.blake2b(english.encode(), digest_size=4).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**32 else "train"
