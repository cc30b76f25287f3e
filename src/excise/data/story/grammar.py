"""Words as English and Spanish say them, made so that `str.format` can write a sentence with them.

In a pattern, `{kite}` is the bare word, `{kite.the}` or `{kite.del}` a form of it, and `{kite:rojo/roja}` the
alternative that agrees with its gender. `{kite:{color}}` works too: a Spanish colour is written "rojo/roja".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """One thing or person in one language, with the forms a pattern may ask for."""

    text: str
    forms: Mapping[str, str]
    feminine: bool = False

    def __format__(self, agreement: str) -> str:
        if not agreement:
            return self.text
        masculine, feminine = agreement.split("/")
        return feminine if self.feminine else masculine

    def __getattr__(self, form: str) -> str:
        try:
            return self.forms[form]
        except KeyError:
            raise AttributeError(f"{self.text!r} has no form {form!r}, only {', '.join(self.forms)}") from None


@dataclass(frozen=True, slots=True)
class Entry:
    """The same thing in both languages."""

    english: Word
    spanish: Word


Entries = tuple[Entry, ...]


def capitalised(text: str) -> str:
    """The text with its first letter in upper case, the rest untouched."""
    return text[:1].upper() + text[1:]


def with_capitals(forms: Mapping[str, str]) -> dict[str, str]:
    """The forms, and beside each one (`the`) the same at the start of a sentence (`The`)."""
    return dict(forms) | {capitalised(name): capitalised(text) for name, text in forms.items()}


def english_person(name: str, *, feminine: bool, forms: Mapping[str, str] | None = None) -> Word:
    """Somebody with the pronouns that English needs."""
    pronouns = {
        "he": "she" if feminine else "he",
        "him": "her" if feminine else "him",
        "his": "her" if feminine else "his",
        "himself": "herself" if feminine else "himself",
    }
    return Word(name, with_capitals(pronouns | dict(forms or {})), feminine)


def spanish_articles(noun: str) -> tuple[str, dict[str, str], bool]:
    """Splits "la cometa" into the noun, its forms with articles, and whether it is feminine.

    A feminine noun that takes "el" because it begins with a stressed a is written "el águila (f)".
    """
    article, bare = noun.removesuffix(" (f)").split(" ", 1)
    feminine = article == "la" or noun.endswith(" (f)")
    indefinite = "un" if article == "el" else "una"
    forms = {
        "un": f"{indefinite} {bare}",
        "el": f"{article} {bare}",
        "al": f"al {bare}" if article == "el" else f"a la {bare}",
        "del": f"del {bare}" if article == "el" else f"de la {bare}",
        "en": f"en {article} {bare}",
        "por": f"por {article} {bare}",
    }
    return bare, with_capitals(forms), feminine


def together(words: list[Word]) -> Word:
    """A group, which is feminine in Spanish only if everybody in it is."""
    return Word(" ".join(word.text for word in words), {}, all(word.feminine for word in words))


def rows(table: str) -> list[list[tuple[str, str]]]:
    """The lines of a table, each a list of (English, Spanish) cells: "a = b | c = d"."""
    lines = (line.strip() for line in table.strip().splitlines())
    return [[_sides(cell) for cell in line.split(" | ")] for line in lines if line]


def _sides(cell: str) -> tuple[str, str]:
    english, spanish = cell.split(" = ")
    return english.strip(), spanish.strip()


def girls(names: str) -> Entries:
    """Girls, or female animals, whose names are the same in both languages."""
    return tuple(_named_person(name, feminine=True) for name in names.split())


def boys(names: str) -> Entries:
    """Boys, or male animals, whose names are the same in both languages."""
    return tuple(_named_person(name, feminine=False) for name in names.split())


def _named_person(name: str, *, feminine: bool) -> Entry:
    return Entry(english_person(name, feminine=feminine), Word(name, {}, feminine))


def animals(table: str) -> Entries:
    """Animals with names, as fables have them; a row is "a mouse = el ratón | Pico Tilo"."""
    lines = (line.split(" | ") for line in table.strip().splitlines())
    return tuple(_animal(*_sides(kind), name) for kind, names in lines for name in names.split())


def _animal(english_kind: str, spanish_kind: str, name: str) -> Entry:
    _, forms, feminine = spanish_articles(spanish_kind)
    english = english_person(name, feminine=feminine, forms={"kind": english_kind})
    return Entry(english, Word(name, {"kind": forms["un"]}, feminine))


def titled(table: str) -> Entries:
    """Grown-ups; a row is "noun = article noun | name in the story = the same | how one calls them = the same"."""
    return tuple(_titled(*row) for row in rows(table))


def _titled(noun: tuple[str, str], name: tuple[str, str], call: tuple[str, str]) -> Entry:
    spanish_noun, _, feminine = spanish_articles(noun[1])
    forms = {
        "noun": spanish_noun,
        "call": call[1],
        "name": name[1],
        "a": f"a {name[1]}".replace("a el ", "al "),
        "de": f"de {name[1]}".replace("de el ", "del "),
    }
    english = english_person(name[0], feminine=feminine, forms={"noun": noun[0], "call": call[0]})
    return Entry(english, Word(name[1], with_capitals(forms), feminine))


def nouns(table: str) -> Entries:
    """Things; a row is "a kite = la cometa", and may go on with named forms: "| plural: kites = cometas"."""
    return tuple(_noun(*row) for row in rows(table))


def _noun(noun: tuple[str, str], *extra: tuple[str, str]) -> Entry:
    _, bare_english = noun[0].split(" ", 1)
    bare_spanish, spanish_forms, feminine = spanish_articles(noun[1])
    extra_english, extra_spanish = _named(extra)
    english_forms = {"a": noun[0], "the": f"the {bare_english}"} | extra_english
    return Entry(
        english_person(bare_english, feminine=feminine, forms=english_forms),
        Word(bare_spanish, spanish_forms | with_capitals(extra_spanish), feminine),
    )


def _named(cells: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], dict[str, str]]:
    english: dict[str, str] = {}
    spanish: dict[str, str] = {}
    for left, right in cells:
        name, text = left.split(": ", 1)
        english[name], spanish[name] = text, right
    return english, spanish


def places(table: str) -> Entries:
    """Where things happen; a row is "in the park = el parque", with the English preposition for being there."""
    return tuple(_place(*row[0]) for row in rows(table))


def _place(english: str, spanish: str) -> Entry:
    _, article, bare = english.split(" ", 2)
    bare_spanish, forms, feminine = spanish_articles(spanish)
    english_forms = {"the": f"{article} {bare}", "at": english, "to": f"to {article} {bare}"}
    return Entry(Word(bare, with_capitals(english_forms), feminine), Word(bare_spanish, forms, feminine))


def phrases(table: str) -> Entries:
    """Words that stand as they are; `{day.up}` begins a sentence, `{color.m}` is a Spanish colour made masculine."""
    return tuple(_phrase(*row[0]) for row in rows(table))


def _phrase(english: str, spanish: str) -> Entry:
    article = "an" if english[0] in "aeiou" else "a"
    forms = {"up": capitalised(english), "a": f"{article} {english}"}
    return Entry(Word(english, forms), Word(spanish, {"up": capitalised(spanish), "m": spanish.split("/")[0]}))


def records(table: str) -> Entries:
    """Things that are several phrases at once: "do: swim = nadar | fail: swallowed water = tragó agua"."""
    return tuple(_record(row) for row in rows(table))


def _record(row: list[tuple[str, str]]) -> Entry:
    english, spanish = _named(tuple(row))
    return Entry(Word("", with_capitals(english)), Word("", with_capitals(spanish)))
