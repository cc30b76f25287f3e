"""Wikipedia: the taxonomy and its groups, one topic per article, articles from parquet and from dumps."""

import bz2
import gzip
import logging
import tracemalloc
from collections import Counter
from xml.sax.saxutils import escape

import numpy as np
import pytest

from excise.data import wikipedia
from excise.data.documents import BadRow, BadRows, Document
from excise.data.wikipedia import (
    GROUPS,
    NAMES,
    TAXONOMY,
    Groups,
    plain_text,
    read_topics,
    read_wikipedia_dump,
    read_wikipedia_parquet,
    topics_under,
)

BIOLOGY, CHEMISTRY, UMBRELLA = "STEM.Biology", "STEM.Chemistry", "STEM.STEM*"

# --- The taxonomy ----------------------------------------------------------------------------------------------------


def test_the_taxonomy_has_the_topics_of_the_appendix_and_the_two_its_table_lacks():
    table = Counter(topic.path[0] for topic in TAXONOMY if topic.in_appendix)
    assert table == {"Culture": 21, "Geography": 22, "History and Society": 7, "STEM": 12}
    assert len(TAXONOMY) == len(set(NAMES)) == 64  # section 5.1
    missing = [topic.name for topic in TAXONOMY if not topic.in_appendix]
    assert missing == ["Culture.Visual_arts.Architecture", "Geography.Regions.Europe.Europe*"]


def test_starred_topics_are_those_of_the_appendix():
    starred = [topic.path[-1] for topic in TAXONOMY if topic.starred and topic.in_appendix]
    assert starred == ["Biography", "Women", "Media", "Visual arts", "Africa", "Asia", "STEM"]


def test_counts_of_headings_are_those_of_the_appendix():
    headings = {
        ("Culture", "Biography"): 2,
        ("Culture", "Media"): 9,
        ("Culture", "Visual arts"): 4,
        ("Geography", "Regions", "Africa"): 6,
        ("Geography", "Regions", "Americas"): 3,
        ("Geography", "Regions", "Asia"): 7,
        ("Geography", "Regions", "Europe"): 5,
        ("Geography", "Regions", "Oceania"): 1,
    }
    assert {path: len(topics_under(*path)) for path in headings} == headings


def test_biology_and_military_are_grouped_as_in_the_paper():
    biology, military = GROUPS["biology"], GROUPS["military"]
    assert biology.forget == (BIOLOGY,)
    assert biology.adjacent == ("STEM.Earth_and_environment", "STEM.Medicine_&_Health", CHEMISTRY)
    assert len(biology.general) == 52
    assert not any(name.startswith("STEM") for name in biology.general)
    assert military.forget == ("History_and_Society.Military_and_warfare",)
    assert military.adjacent == (
        "History_and_Society.History",
        "Culture.Biography.Biography*",
        "Culture.Biography.Women",
        "History_and_Society.Transportation",
    )
    assert set(military.general) == set(biology.general) - set(military.forget) - set(military.adjacent)
    assert [biology.group_of(name) for name in (BIOLOGY, CHEMISTRY, "STEM.Physics")] == ["forget", "adjacent", None]
    assert military.group_of("Culture.Sports") == "general"


def test_groups_refuse_unknown_and_repeated_topics():
    with pytest.raises(ValueError, match=r"unknown topic 'STEM.Biologie' in the forget group; did you mean 'STEM.Biol"):
        Groups(("STEM.Biologie",), (), ())
    with pytest.raises(ValueError, match=r"'STEM.Biology' is in the forget and the general group"):
        Groups((BIOLOGY,), (), (BIOLOGY,))
    with pytest.raises(ValueError, match=r"no 'Sport'; did you mean|no 'Sport'; known: Culture"):
        topics_under("Sport")


# --- One topic per article -------------------------------------------------------------------------------------------

HEADER = "wikidata_id,page_id,title,source_wiki,topic,score\n"
TABLE = """\
Q1,12,Cell,enwiki,STEM.STEM*,0.99
Q1,12,Cell,enwiki,STEM.Biology,0.97
Q1,12,Cell,enwiki,STEM.Chemistry,0.31
Q2,7,"Paris, Texas",enwiki,Geography.Regions.Americas.North_America,0.8
Q2,7,"Paris, Texas",enwiki,History_and_Society.History,0.4
Q3,12,Zelle,dewiki,STEM.Physics,1.0
Q4,90000000,Science,enwiki,STEM.STEM*,0.6
"""
BY_SCORE = {7: "Geography.Regions.Americas.North_America", 12: UMBRELLA, 90_000_000: UMBRELLA}


def write(path, text):
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".bz2":  # two streams, as pbzip2 writes
        data = bz2.compress(data[:100]) + bz2.compress(data[100:])
    if path.suffix == ".zst":
        data = pytest.importorskip("zstandard").compress(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".zst"])
def test_an_article_has_the_topic_with_the_highest_score(tmp_path, ending):
    topics = read_topics(write(tmp_path / f"topics.csv{ending}", HEADER + TABLE))
    assert topics == BY_SCORE
    assert list(topics) == sorted(BY_SCORE)
    assert topics.get(13) is None
    assert -1 not in topics
    assert 1 << 40 not in topics


def test_umbrella_topics_can_be_the_last_resort(tmp_path):
    topics = read_topics(write(tmp_path / "topics.csv", HEADER + TABLE), umbrella="last_resort")
    assert topics == BY_SCORE | {12: BIOLOGY}


def test_another_wiki_has_articles_of_its_own(tmp_path):
    path = write(tmp_path / "topics.csv", HEADER + TABLE)
    assert read_topics(path, wiki="dewiki") == {12: "STEM.Physics"}
    with pytest.raises(ValueError, match=r"topics.csv has no article of the wiki 'frwiki'; did you mean"):
        read_topics(path, wiki="frwiki")


def test_tables_without_header_with_bare_commas_or_with_other_names_read_the_same(tmp_path):
    bare = TABLE.replace('"', "")
    header = "wiki_db\tpid\tQid\tTopic\tprobability\n"
    tabbed = "".join(
        f"{wiki}\t{page}\t{item}\t{topic}\t{score}\n"
        for item, page, *_, wiki, topic, score in (line.split(",") for line in TABLE.splitlines())
    )
    for name, text in {"bare": bare, "headed": "\ufeff" + HEADER + bare, "tabbed": header + tabbed}.items():
        assert read_topics(write(tmp_path / f"{name}.csv", text.replace("\n", "\r\n") + "\r\n")) == BY_SCORE, name


@pytest.mark.parametrize("rows", [(BIOLOGY, CHEMISTRY), (CHEMISTRY, BIOLOGY)])
def test_equal_scores_give_the_first_topic_of_the_taxonomy(tmp_path, rows):
    text = HEADER + "".join(f"Q1,1,A,enwiki,{topic},0.5\n" for topic in rows)
    assert read_topics(write(tmp_path / "topics.csv", text)) == {1: BIOLOGY}


def test_the_papers_spelling_of_a_topic_is_known(tmp_path):
    text = HEADER + "Q1,1,A,enwiki,STEM.Medicine and Health,0.5\nQ1,2,A,enwiki,Culture.Biography.Women*,0.5\n"
    assert read_topics(write(tmp_path / "t.csv", text)) == {1: "STEM.Medicine_&_Health", 2: "Culture.Biography.Women"}


def test_rows_of_an_article_may_be_far_apart(tmp_path, monkeypatch):
    """Whatever the order and however the table falls into batches, the answer is that of a plain dict."""
    monkeypatch.setattr(wikipedia, "BATCH", 97)
    generator = np.random.default_rng(0)
    pages, numbers = generator.integers(500, size=5000).tolist(), generator.integers(64, size=5000).tolist()
    scores = generator.random(5000).round(2).tolist()
    best, lines = {}, [HEADER]
    for page_id, number, score in zip(pages, numbers, scores, strict=True):
        best[page_id] = min((-score, number), best.get(page_id, (0, 0)))
        lines.append(f"Q1,{page_id},A,enwiki,{NAMES[number]},{score}\n")
    topics = read_topics(write(tmp_path / "topics.csv", "".join(lines)))
    assert topics == {page_id: NAMES[number] for page_id, (_, number) in best.items()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER.replace("page_id,", ""), "has no column for the page id, which may be called page_id, pid"),
        (HEADER.replace(",score", ",weight"), "has no column for the score.* its columns are wikidata_id"),
        (HEADER.replace("source_wiki", "where"), "has no column for the source wiki"),
        ("Q1,12,enwiki,STEM.Biology,0.5\n", "has no header and not the columns wikidata id, page id"),
        (HEADER + "Q1,12,A,enwiki,STEM.Biologie,0.5\n", "line 2 .* unknown topic 'STEM.Biologie'; did you mean"),
        (HEADER + "Q1,twelve,A,enwiki,STEM.Biology,0.5\n", "line 2 .* has no page id in 'twelve'"),
        (HEADER + "Q1,12,A,enwiki,STEM.Biology,nan\n", "line 2 .* has no score in 'nan'"),
        (HEADER + TABLE[:-20], "line 8 .* columns and not 6"),
        ("", "is empty"),
        (HEADER, "has no article of the wiki 'enwiki'"),
    ],
)
def test_a_broken_table_is_named_in_one_sentence(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        read_topics(write(tmp_path / "topics.csv", text))
    assert "topics.csv" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst"])
def test_a_truncated_table_is_an_error(tmp_path, ending):
    path = write(tmp_path / f"topics.csv{ending}", HEADER + TABLE * 100)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"topics\.csv\.\w+ is truncated or damaged"):
        read_topics(path)


def test_damage_to_a_later_bz2_stream_is_an_error(tmp_path):
    path = write(tmp_path / "topics.csv.bz2", HEADER + TABLE)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"BZh")] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"topics\.csv\.bz2 is truncated or damaged"):
        read_topics(path)


def test_memory_is_a_few_bytes_an_article(tmp_path):
    n_articles = 50_000
    path = tmp_path / "topics.csv"
    with path.open("w") as file:
        file.write(HEADER)
        for page in range(n_articles):
            file.write(f"Q{page},{page},A title,enwiki,STEM.Biology,0.5\n")
    tracemalloc.start()
    topics = read_topics(path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(topics) == n_articles
    assert kept < 8 * n_articles
    assert peak < 100 * n_articles


# --- Articles from parquet -------------------------------------------------------------------------------------------

TOPICS = {12: BIOLOGY, 7: "History_and_Society.History", 20: CHEMISTRY}


def write_parquet(path, articles):
    pyarrow = pytest.importorskip("pyarrow")
    table = [{"id": id, "url": f"https://x/{id}", "title": f"T{id}", "text": text} for id, text in articles]
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(table), path)
    return path


def test_parquet_articles_have_the_topic_of_their_page_id(tmp_path):
    write_parquet(tmp_path / "train-00001-of-00002.parquet", [("7", "Past."), ("99", "Unknown.")])
    write_parquet(tmp_path / "train-00000-of-00002.parquet", [("12", "Cells."), ("20", "")])
    rows = list(read_wikipedia_parquet(tmp_path, TOPICS))
    assert rows == [
        Document("12", "Cells.", BIOLOGY),
        BadRow("train-00000-of-00002.parquet:2", "has no text in 'text'"),
        Document("7", "Past.", "History_and_Society.History"),
        BadRow("train-00001-of-00002.parquet article 99", "has no topic"),
    ]
    assert list(read_wikipedia_parquet(tmp_path / "train-00001-of-00002.parquet", TOPICS)) == rows[2:]


def test_articles_without_a_topic_can_be_skipped_and_are_counted(tmp_path, caplog):
    path = write_parquet(tmp_path / "a.parquet", [("12", "Cells."), ("99", "Unknown."), ("98", "Unknown.")])
    with caplog.at_level(logging.INFO):
        assert [row.id for row in read_wikipedia_parquet(path, TOPICS, without_topic="skip")] == ["12"]
    assert "2 of 3 articles have no topic" in caplog.text


def test_a_column_that_is_no_page_id_is_a_bad_row(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [("x12", "Cells.")])
    assert [row.reason for row in read_wikipedia_parquet(path, TOPICS)] == ["has an 'id' that is not a page id"]


def test_damaged_or_absent_parquet_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"holds no \.parquet file; give the folder of one language"):
        read_wikipedia_parquet(tmp_path, TOPICS)
    path = write_parquet(tmp_path / "a.parquet", [("12", "Cells.")])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"a\.parquet is truncated or damaged"):
        list(read_wikipedia_parquet(tmp_path, TOPICS))


# --- Articles from a dump --------------------------------------------------------------------------------------------

OPENING = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo><sitename>Wikipedia</sitename><namespaces>
    <namespace key="-2" case="first-letter">Medium</namespace><namespace key="0" case="first-letter" />
    <namespace key="6" case="first-letter">Datei</namespace>
    <namespace key="14" case="first-letter">Kategorie</namespace>
  </namespaces></siteinfo>
"""


def page(id, text, *, namespace=0, redirect=""):
    redirected = f'<redirect title="{redirect}" />' if redirect else ""
    return (
        f"  <page><title>T{id}</title><ns>{namespace}</ns><id>{id}</id>{redirected}"
        f"<revision><id>{id}00</id><contributor><username>U</username><id>5</id></contributor>"
        f'<model>wikitext</model><text bytes="{len(text)}" xml:space="preserve">{escape(text)}</text></revision></page>\n'
    )


CELL = """{{Short description|Unit of life}}
{{Infobox|name=Cell|image=[[File:Cell.jpg|thumb]]|data={{nested|{{deep}}}}}}
<!-- a comment -->
[[File:Cell.jpg|thumb|A ''[[eukaryote|eukaryotic]]'' cell]]
The '''cell''' is the [[Life#Units|basic unit]] of ''all [[organism]]s''.<ref name="a">{{cite|x}} Book.</ref><ref name="b" />
It is small&nbsp;&ndash; very [https://example.org small indeed] [https://example.org].



== History and [[Discovery|''discovery'']] ==
{| class="wikitable"
! Year !! Who {{note}}
|-
| 1665 ||
{| class="inner"
| Hooke
|}
|}
* First [[Robert Hooke]]
* Then<br>others
<math>E = mc^2</math>
__NOTOC__
<gallery>File:A.jpg|Caption</gallery>
<div class="x">A [[Datei:B.jpg|Bild]]box, [[:Kategorie:Shown|a shown category]]</div>
<references />
[[Category:Biology]]
[[Kategorie:Biologie|Zelle]]
"""
CELL_TEXT = """The cell is the basic unit of all organisms.
It is small\xa0– very small indeed .

History and discovery

First Robert Hooke
Then
others

A box, a shown category"""

DUMP = (
    OPENING
    + page(12, CELL)
    + page(13, "#REDIRECT [[Cell]]", redirect="Cell")
    + page(14, "#redirect [[Cell]]")
    + page(15, "Talk about it.", namespace=1)
    + page(20, "{{only|a template}}")
    + page(7, "Past & present <nowiki>''as is''</nowiki>.")
    + page(99, "Nobody knows.")
    + "</mediawiki>\n"
)


def write_dump(folder, form, dump=DUMP):
    path = folder / ("dump.xml" if form == "plain" else f"{form}.xml.bz2")
    data = dump.encode()
    if form == "bz2":
        data = bz2.compress(data)
    if form == "multistream":
        first, last = data.index(b"  <page>"), data.index(b"</mediawiki>")
        middle = (first + last) // 2
        data = b"".join(
            bz2.compress(part) for part in (data[:first], data[first:middle], data[middle:last], data[last:])
        )
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("form", ["plain", "bz2", "multistream"])
def test_a_dump_gives_its_articles_as_plain_text(tmp_path, form):
    pytest.importorskip("mwparserfromhell", reason="wikitext needs mwparserfromhell")
    path = write_dump(tmp_path, form)
    rows = list(read_wikipedia_dump(path, TOPICS))
    assert rows == [
        Document("12", CELL_TEXT, BIOLOGY),
        BadRow(f"{path.name} article 20", "has no text"),
        Document("7", "Past & present ''as is''.", "History_and_Society.History"),
        BadRow(f"{path.name} article 99", "has no topic"),
    ]
    skipping = BadRows(limit=1)
    assert len(list(skipping.skip(read_wikipedia_dump(path, TOPICS, without_topic="skip")))) == 2
    assert skipping.n_bad == 1


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("[[File:A.jpg|thumb|[[B]] and [[File:C.jpg|D]]]] E", "E"),
        ("<table><tr><td>A</td></tr></table>B", "B"),
        ("A<ref>B [[C]] <!-- D --> {{E}}</ref>F", "AF"),
        ("=== A ===\n==== B ====\nC", "A\n\nB\n\nC"),
        ("''A '''B''' ''[[C|D '''E''']]", "A B D E"),
        ("{{#if:{{{1|}}}|A}}{{{B|C}}}D", "D"),
        ("# A\n#* B\n: C\n; D : E", "A\nB\nC\nD  E"),
        ("A <small>B</small> <span style='x'>C</span><style>D</style>", "A B C"),
        ("[[ category : A ]][[Image:B]]{{C}} [[Talk:D|D]]", "D"),
        ("{{unclosed [[A", "{{unclosed [[A"),
        ("A {{b|{{c}}|[[D|{{e}}]]<!-- }} -->}}<!-- {{ -->F", "A F"),
        ("A {{b|<math>\\frac{1}{2}</math>}}C", "A C"),
        ("", ""),
    ],
)
def test_markup_is_removed_and_words_are_kept(wikitext, text):
    pytest.importorskip("mwparserfromhell", reason="wikitext needs mwparserfromhell")
    assert plain_text(wikitext) == text


@pytest.mark.parametrize("form", ["plain", "bz2", "multistream"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_a_truncated_dump_is_an_error(tmp_path, form, share):
    pytest.importorskip("mwparserfromhell", reason="wikitext needs mwparserfromhell")
    path = write_dump(tmp_path, form)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match=rf"{path.name} is truncated or damaged \([^\n]+\)"):
        list(read_wikipedia_dump(path, TOPICS))


def test_a_dump_cut_between_two_streams_is_an_error(tmp_path):
    pytest.importorskip("mwparserfromhell", reason="wikitext needs mwparserfromhell")
    path = write_dump(tmp_path, "multistream")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"BZh")])
    with pytest.raises(ValueError, match="truncated or damaged"):
        list(read_wikipedia_dump(path, TOPICS))


@pytest.mark.parametrize("form", ["plain", "bz2"])
def test_memory_stays_flat_over_a_long_dump(tmp_path, form):
    pytest.importorskip("mwparserfromhell", reason="wikitext needs mwparserfromhell")
    filler = page(15, "Talk about it. " * 600, namespace=1) * 100
    path = tmp_path / ("long.xml" if form == "plain" else "long.xml.bz2")
    with path.open("wb") if form == "plain" else bz2.open(path, "wb", compresslevel=1) as file:
        file.write(OPENING.encode())
        for _ in range(55 if form == "plain" else 10):
            file.write((page(12, CELL) + filler).encode())
        file.write(b"</mediawiki>")
    assert form == "bz2" or path.stat().st_size > 50e6
    next(read_wikipedia_dump(path, TOPICS))  # imports
    tracemalloc.start()
    n_articles = sum(1 for _ in read_wikipedia_dump(path, TOPICS))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n_articles == (55 if form == "plain" else 10)
    assert peak < 4e6
