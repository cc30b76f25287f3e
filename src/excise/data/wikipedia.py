"""Wikipedia: articles with one topic each (paper, section 5; appendices H, J and K).

    topics = read_topics(Path("topicsForAllWikipediaPages.csv.gz"))
    rows = read_wikipedia_parquet(Path("20231101.en"), topics)        # or read_wikipedia_dump(...xml.bz2, topics)
    GROUPS["biology"].forget                                          # ("STEM.Biology",)

The topics come from Wikimedia's article-topic table, which has several scores for an article; the paper takes the
highest. Topics are called what the table calls them, e.g. `STEM.Medicine_&_Health`.
"""

import bz2
import gzip
import json
import logging
import math
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from excise.data.documents import (
    BadRow,
    DamagedError,
    Document,
    Fields,
    Rows,
    first_line,
    read_parquet,
    zstd_chunks,
)
from excise.extras import needs
from excise.labels import nearest

log = logging.getLogger(__name__)

# --- The taxonomy, and what is removed -------------------------------------------------------------------------------


Umbrella = Literal["highest", "last_resort"]


@dataclass(frozen=True)
class Topic:
    """One topic of the taxonomy."""

    name: str
    """As Wikimedia's tables spell it."""
    path: tuple[str, ...]
    """Its place in the tree, in the paper's words."""
    starred: bool
    """An umbrella topic, which an article has beside the topics under it."""
    in_appendix: bool
    """False for the two of the 64 topics that the table of appendix K leaves out."""


def _load_taxonomy() -> tuple[Topic, ...]:
    rows = json.loads(files("excise.data").joinpath("articletopic.json").read_text(encoding="utf-8"))["topics"]
    return tuple(Topic(row["name"], tuple(row["path"]), row["starred"], row["in_appendix"]) for row in rows)


TAXONOMY = _load_taxonomy()
NAMES = tuple(topic.name for topic in TAXONOMY)
STARRED = np.array([topic.starred for topic in TAXONOMY])


def topics_under(*path: str) -> tuple[str, ...]:
    """All topics below a heading of the taxonomy, e.g. `topics_under("Culture", "Biography")`."""
    names = tuple(topic.name for topic in TAXONOMY if topic.path[: len(path)] == path)
    if not names:
        headings = {".".join(topic.path[: len(path)]) for topic in TAXONOMY}
        raise ValueError(f"the taxonomy has no {'.'.join(path)!r}; {nearest('.'.join(path), sorted(headings))}")
    return names


@dataclass(frozen=True)
class Groups:
    """Which topics are removed, which are near to them and which are far; all others are only trained on."""

    forget: tuple[str, ...]
    adjacent: tuple[str, ...]
    general: tuple[str, ...]

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for group, names in vars(self).items():
            for name in names:
                if name not in NAMES:
                    raise ValueError(f"unknown topic {name!r} in the {group} group; {nearest(name, NAMES)}")
                if name in seen:
                    raise ValueError(f"topic {name!r} is in the {seen[name]} and the {group} group; leave it in one")
                seen[name] = group

    def group_of(self, topic: str) -> str | None:
        """The group that a topic is evaluated in: `forget`, `adjacent`, `general`, or none."""
        return next((group for group, names in vars(self).items() if topic in names), None)


def _groups(forget: tuple[str, ...], adjacent: tuple[str, ...]) -> Groups:
    """General knowledge is Culture, Geography, History and Society (section 5.1), without what the others name."""
    knowledge = chain.from_iterable(topics_under(area) for area in ("Culture", "Geography", "History and Society"))
    return Groups(forget, adjacent, tuple(name for name in knowledge if name not in forget + adjacent))


GROUPS: Mapping[str, Groups] = {
    "biology": _groups(
        forget=topics_under("STEM", "Biology"),
        adjacent=(
            *topics_under("STEM", "Earth and environment"),
            *topics_under("STEM", "Medicine and Health"),
            *topics_under("STEM", "Chemistry"),
        ),
    ),
    "military": _groups(
        forget=topics_under("History and Society", "Military and warfare"),
        adjacent=(
            *topics_under("History and Society", "History"),
            *topics_under("Culture", "Biography"),
            *topics_under("History and Society", "Transportation"),
        ),
    ),
}


# --- The article-topic table -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Topics(Mapping[int, str]):
    """Page id -> topic, five bytes an article."""

    pages: NDArray[np.uint32]
    """Ascending."""
    numbers: NDArray[np.uint8]
    """The topic's place in the taxonomy."""

    def __getitem__(self, page: int) -> str:
        if 0 <= page < 1 << 32:
            # A plain int would have numpy convert the whole array at every look-up.
            place = int(self.pages.searchsorted(np.uint32(page)))
            if place < len(self.pages) and self.pages[place] == page:
                return NAMES[int(self.numbers[place])]
        raise KeyError(page)

    def __iter__(self) -> Iterator[int]:
        return iter(self.pages.tolist())

    def __len__(self) -> int:
        return len(self.pages)


BATCH = 1 << 20
SCORED = np.dtype([("page", np.uint32), ("number", np.uint8), ("score", np.float64)])


def read_topics(path: Path, *, wiki: str = "enwiki", umbrella: Umbrella = "highest") -> Topics:
    """One topic for every article of a wiki: that with the highest score, or, of equal ones, first in the taxonomy.

    `umbrella="last_resort"` takes a starred topic only for articles that have no other.
    """
    rows = _scores(path, wiki)
    best = np.empty(0, SCORED)
    while len(more := np.fromiter(islice(rows, max(BATCH, len(best) // 4)), SCORED)):
        best = _best(np.concatenate([best, more]), umbrella)
    return Topics(best["page"].copy(), best["number"].copy())


def _best(rows: NDArray[np.void], umbrella: str) -> NDArray[np.void]:
    """The first row of each page, by score or by (not starred, score), ascending by page."""
    last_resort = [STARRED[rows["number"]]] if umbrella == "last_resort" else []
    rows = rows[np.lexsort([rows["number"], -rows["score"], *last_resort, rows["page"]])]
    is_first: NDArray[np.bool_] = np.append(True, rows["page"][1:] != rows["page"][:-1])
    best: NDArray[np.void] = rows[is_first]
    return best


COLUMNS = {
    "wikidata id": ("wikidata_id", "wikidata", "qid", "item_id"),
    "page id": ("page_id", "pid", "page"),
    "title": ("title", "page_title", "article"),
    "source wiki": ("source_wiki", "source", "wiki_db", "wiki", "wiki_id", "db", "dbname"),
    "topic": ("topic", "article_topic", "label"),
    "score": ("score", "topic_score", "probability", "prob"),
}


def _scores(path: Path, wiki: str) -> Iterator[tuple[int, int, float]]:
    """Page, topic and score of every row of the wiki."""
    with closing(_lines(path)) as lines:
        yield from _scored(path, wiki, enumerate(lines, 1))


def _scored(path: Path, wiki: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, int, float]]:
    first = next(lines)
    read_row, is_header = _row_reader(path, first[1])
    number_of: dict[str, int] = {}
    wikis: set[str] = set()
    for line_number, line in lines if is_header else chain([first], lines):
        if not line:
            continue
        try:
            source, page, topic, score = read_row(line)
            if source != wiki:
                wikis.add(source)
                continue
            if topic not in number_of:
                number_of[topic] = _topic_number(topic)
            row = _page_id(page), number_of[topic], _finite(score)
        except ValueError as error:
            raise ValueError(f"line {line_number} of {path} {error}") from None
        yield row
    if not number_of:
        raise ValueError(f"{path} has no article of the wiki {wiki!r}; {nearest(wiki, sorted(wikis))}")


def _row_reader(path: Path, first: str) -> tuple[Callable[[str], tuple[str, ...]], bool]:
    """How to take source wiki, page id, topic and score from a line, and whether the first line names the columns.

    Lines are split by hand: tables exist whose titles are quoted and whose titles are not ("Paris, Texas"), and both
    read well if what stands after the title is counted from the end.
    """
    if not first:
        raise ValueError(f"{path} is empty, or begins with an empty line")
    comma = "\t" if "\t" in first else ","
    cells = [cell.strip(' "') for cell in first.split(comma)]
    is_header = not _is_number(cells[-1])
    if not is_header and len(cells) < len(COLUMNS):
        raise ValueError(f"{path} has no header and not the columns {', '.join(COLUMNS)}: {first[:80]!r}")
    places = _columns(path, cells) if is_header else {name: place for place, name in enumerate(COLUMNS)}
    n_columns = len(cells) if is_header else len(COLUMNS)
    wanted = [places[name] for name in ("source wiki", "page id", "topic", "score")]
    pick = itemgetter(*(place - n_columns if place > places.get("title", n_columns) else place for place in wanted))

    def read_row(line: str) -> tuple[str, ...]:
        row = line.split(comma)
        if len(row) < n_columns:
            raise ValueError(f"has {len(row)} columns and not {n_columns}: {line[:80]!r}")
        return tuple(cell.strip(' "') for cell in pick(row)) if '"' in line else pick(row)

    return read_row, is_header


def _columns(path: Path, header: list[str]) -> dict[str, int]:
    """The place of each column by its own name, whatever the table calls it."""
    plain = [re.sub(r"[\W_]", "", name.lower()) for name in header]
    places = {}
    for column, spellings in COLUMNS.items():
        found = [plain.index(name) for name in (spelling.replace("_", "") for spelling in spellings) if name in plain]
        if found:
            places[column] = found[0]
        elif column not in ("wikidata id", "title"):
            raise ValueError(
                f"{path} has no column for the {column}, which may be called {', '.join(spellings)}; "
                f"its columns are {', '.join(header)}"
            )
    return places


def _topic_number(topic: str) -> int:
    """A topic's place in the taxonomy, whether it is spelt with '&' or 'and', blanks or underscores, star or none."""
    plain = [_plain_topic(name) for name in NAMES]
    if _plain_topic(topic) not in plain:
        raise ValueError(f"has the unknown topic {topic!r}; {nearest(topic, NAMES)}")
    return plain.index(_plain_topic(topic))


def _plain_topic(name: str) -> str:
    return name.lower().replace("_", " ").replace("&", "and").rstrip("*")


def _page_id(cell: str) -> int:
    if cell.isdecimal() and (page := int(cell)) < 1 << 32:
        return page
    raise ValueError(f"has no page id in {cell!r}")


def _finite(cell: str) -> float:
    if _is_number(cell) and math.isfinite(score := float(cell)):
        return score
    raise ValueError(f"has no score in {cell!r}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# --- Articles --------------------------------------------------------------------------------------------------------

WithoutTopic = Literal["report", "skip"]
NO_TOPIC = "has no topic"


def read_wikipedia_parquet(path: Path, topics: Mapping[int, str], *, without_topic: WithoutTopic = "report") -> Rows:
    """Articles of `wikimedia/wikipedia` as it is on the HuggingFace Hub: one file, or the folder of one language.

    An article that the topic table lacks is a bad row, or is skipped and counted in the log.
    """
    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise ValueError(f"{path} holds no .parquet file; give the folder of one language, such as 20231101.en")
    rows = chain.from_iterable(_parquet_articles(file, topics) for file in paths)
    return _skip_without_topic(rows, path) if without_topic == "skip" else rows


def _parquet_articles(path: Path, topics: Mapping[int, str]) -> Rows:
    for row in read_parquet(path, Fields(id="id", category="", label="")):
        if isinstance(row, BadRow):
            yield row
        elif not row.id.isdecimal():
            yield BadRow(f"{path.name} article {row.id}", "has an 'id' that is not a page id")
        elif (topic := topics.get(int(row.id))) is None:
            yield BadRow(f"{path.name} article {row.id}", NO_TOPIC)
        else:
            yield replace(row, category=topic)


def read_wikipedia_dump(path: Path, topics: Mapping[int, str], *, without_topic: WithoutTopic = "report") -> Rows:
    """Articles of a `pages-articles` dump (.xml.bz2, multistream or not, or .xml) as plain text.

    Redirects and pages that are not articles are left out. An article that the topic table lacks is a bad row, or is
    skipped and counted in the log.
    """
    rows = _dump_articles(path, topics)
    return _skip_without_topic(rows, path) if without_topic == "skip" else rows


def _dump_articles(path: Path, topics: Mapping[int, str]) -> Rows:
    invisible = INVISIBLE_NAMESPACES
    for element in _elements(path, ("siteinfo", "page")):
        if _tag(element) == "siteinfo":
            invisible = INVISIBLE_NAMESPACES | _invisible_namespaces(element)
            continue
        page, wikitext = element.findtext("{*}id") or "", element.findtext("{*}revision/{*}text") or ""
        if not _is_article(element, wikitext):
            continue
        where = f"{path.name} article {page}"
        topic = topics.get(int(page)) if page.isdecimal() else None
        if topic is None:
            yield BadRow(where, NO_TOPIC)
        else:
            yield _article(page, wikitext, topic, invisible, where)


def _article(page: str, wikitext: str, topic: str, invisible: frozenset[str], where: str) -> Document | BadRow:
    try:
        text = plain_text(wikitext, invisible)
    except needs("mwparserfromhell", "data").parser.ParserError:
        return BadRow(where, "has wikitext that mwparserfromhell cannot parse")
    return Document(page, text, topic) if text else BadRow(where, "has no text")


def _skip_without_topic(rows: Iterable[Document | BadRow], path: Path) -> Rows:
    n_articles = n_skipped = 0
    for row in rows:
        n_articles += 1
        if isinstance(row, BadRow) and row.reason == NO_TOPIC:
            n_skipped += 1
        else:
            yield row
    log.info("%s: %d of %d articles have no topic and were skipped", path, n_skipped, n_articles)


# --- XML dumps -------------------------------------------------------------------------------------------------------


def _elements(path: Path, tags: tuple[str, ...]) -> Iterator[ElementTree.Element]:
    """The elements with these tags, each forgotten when the next one is asked for."""
    parser: ElementTree.XMLPullParser[ElementTree.Element] = ElementTree.XMLPullParser(("start", "end"))
    root: ElementTree.Element | None = None
    try:
        for chunk in _chunks(path):
            parser.feed(chunk)
            events: Iterator[Any] = parser.read_events()
            for event, element in events:
                root = element if root is None else root
                if event == "end" and _tag(element) in tags:
                    yield element
                    root.clear()
        parser.close()
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is truncated or damaged ({first_line(error)})") from None


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _is_article(page: ElementTree.Element, wikitext: str) -> bool:
    is_redirect = page.find("{*}redirect") is not None or re.match(r"\s*#redirect\b", wikitext, re.IGNORECASE)
    return page.findtext("{*}ns") == "0" and not is_redirect


INVISIBLE_NAMESPACES = frozenset({"file", "image", "media", "category"})
"""Links into these show a picture or nothing at all. The names are valid in every language."""


def _invisible_namespaces(siteinfo: ElementTree.Element) -> set[str]:
    """What the dump's own language calls them."""
    namespaces = siteinfo.iterfind("{*}namespaces/{*}namespace")
    return {(space.text or "").lower() for space in namespaces if space.get("key") in ("6", "-2", "14")}


# --- Wikitext --------------------------------------------------------------------------------------------------------


def plain_text(wikitext: str, invisible: Iterable[str] = INVISIBLE_NAMESPACES) -> str:
    """What a reader sees as running text: no templates, tables, references, pictures, categories or markup.

    Headings stay, as lines of their own; no more than one line in a row is blank.
    """
    library = needs("mwparserfromhell", "data")
    wikicode = library.parse(_without_templates(wikitext))
    text = "".join(_visible(wikicode, library, frozenset(invisible)))
    lines = (line.strip() for line in re.sub(r"__[A-Z]+__", "", text).splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


INNERMOST_TEMPLATE = re.compile(r"(?<!\{)\{\{(?!\{)[^{}]*\}\}(?!\})|<!--.*?-->", re.DOTALL)


def _without_templates(wikitext: str) -> str:
    """The text without comments and well-formed templates, from the inside out.

    The library would drop them too; but they are half of an article, and it parses 0.3 MB a second, 0.7 without them.
    """
    for _ in range(40):
        wikitext, n_removed = INNERMOST_TEMPLATE.subn("", wikitext)
        if not n_removed:
            break
    return wikitext


def _visible(wikicode: Any, library: Any, invisible: frozenset[str]) -> Iterator[str]:
    """The visible text of parsed wikitext, piece by piece; templates, comments and arguments have none."""
    nodes = library.nodes
    for node in wikicode.nodes if wikicode is not None else ():
        if isinstance(node, nodes.Text):
            yield node.value
        elif isinstance(node, nodes.HTMLEntity):
            yield node.normalize()
        elif isinstance(node, nodes.Heading):
            yield from ("\n\n", *_visible(node.title, library, invisible), "\n\n")
        elif isinstance(node, nodes.Tag):
            yield from _visible_tag(node, library, invisible)
        elif isinstance(node, nodes.ExternalLink):
            yield from _visible(node.title if node.brackets else node.url, library, invisible)
        elif isinstance(node, nodes.Wikilink) and not _is_invisible(str(node.title), invisible):
            yield from _visible(node.text or node.title, library, invisible)


# The library takes these for text; `math` and the like it knows to be none.
INVISIBLE_TAGS = ("ref", "references", "table", "style", "syntaxhighlight", "source", "hiero")


def _visible_tag(tag: Any, library: Any, invisible: frozenset[str]) -> Iterator[str]:
    name = str(tag.tag).strip().lower()
    if name == "br":
        yield "\n"
    elif name not in INVISIBLE_TAGS and library.definitions.is_visible(name):
        yield from _visible(tag.contents, library, invisible)


def _is_invisible(link: str, namespaces: frozenset[str]) -> bool:
    namespace, colon, _ = link.partition(":")
    return bool(colon) and namespace.strip().replace("_", " ").lower() in namespaces


# --- Files, compressed or not ----------------------------------------------------------------------------------------

CHUNK = 1 << 16


def _lines(path: Path) -> Generator[str]:
    """The lines of a text; what is not UTF-8 becomes a replacement character."""
    rest = b""
    with closing(_chunks(path)) as chunks:
        for chunk in chain(chunks, [b"\n"]):
            whole, end, rest = (rest + chunk).rpartition(b"\n")
            if end:
                yield from (line.strip("\ufeff\r") for line in whole.decode("utf-8", "replace").split("\n"))


def _chunks(path: Path) -> Generator[bytes]:
    """What a plain, .gz, .bz2 or .zst file holds, a little at a time."""
    try:
        if path.suffix == ".bz2":
            yield from _bz2_chunks(path)
        elif path.suffix == ".zst":
            yield from zstd_chunks(path)
        else:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                yield from iter(lambda: file.read(CHUNK), b"")
    except (EOFError, gzip.BadGzipFile, zlib.error, DamagedError) as error:
        raise ValueError(f"{path} is truncated or damaged ({first_line(error)})") from None


def _bz2_chunks(path: Path) -> Iterator[bytes]:
    """What all streams of a file hold; Python's own reader would take a damaged second stream for the end."""
    with path.open("rb") as file:
        data = file.read(CHUNK)
        while data:
            stream = bz2.BZ2Decompressor()
            while not stream.eof:
                data = data or (file.read(CHUNK) if stream.needs_input else b"")
                if stream.needs_input and not data:
                    raise DamagedError("its last stream has no end")
                try:
                    yield stream.decompress(data, CHUNK)
                except OSError as error:
                    raise DamagedError(error) from None
                data = b""
            data = stream.unused_data or file.read(CHUNK)
