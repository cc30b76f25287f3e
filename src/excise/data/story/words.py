"""The lexicon: who and what the plots are about, in tables that the cast of a plot refers to by name.

The tables stand in `words.txt`; `== trees: nouns` opens the table "trees", made of nouns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from excise.data.story.grammar import Entries, animals, boys, girls, nouns, phrases, places, records, titled

WORDS = Path(__file__).with_name("words.txt")

KINDS: dict[str, Callable[[str], Entries]] = {
    "girls": girls,
    "boys": boys,
    "animals": animals,
    "titled": titled,
    "nouns": nouns,
    "places": places,
    "phrases": phrases,
    "records": records,
}


def read_tables(path: Path) -> dict[str, Entries]:
    """All tables of a lexicon file; two tables of one name are one table."""
    tables: dict[str, Entries] = {}
    for section in path.read_text(encoding="utf-8").split("== ")[1:]:
        head, body = section.split("\n", 1)
        name, kind = head.split(": ")
        tables[name] = tables.get(name, ()) + KINDS[kind](body)
    return tables


TABLES = read_tables(WORDS)
