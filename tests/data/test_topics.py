"""The embedded encyclopaedia: one world without contradictions, noisy labels, disjoint splits and sound English."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from functools import cache
from itertools import islice
from string import Formatter

import pytest

from excise.data.topic.kinds import Kind, kinds
from excise.data.topic.world import Fact, world
from excise.data.topics import (
    CATEGORIES,
    Article,
    Split,
    articles,
    articles_with_facts,
    facts,
    questions,
    split_of,
)

N_SAMPLE = 1600
GOLDEN = "a453e4bfa7cb2353"
FIELDS = {"S", "s", "x", "Own", "own", "Name", "name", "it", "its", "Its", "kind", "o", "O"}


@cache
def sample(split: Split = "train") -> tuple[tuple[Article, tuple[Fact, ...]], ...]:
    return tuple(articles_with_facts(N_SAMPLE, seed=11, split=split))


@cache
def texts() -> tuple[str, ...]:
    return tuple(article.text for split in ("train", "test") for article, _ in sample(split))  # type: ignore[arg-type]


@cache
def all_facts() -> frozenset[Fact]:
    return frozenset(fact for category in CATEGORIES for fact in facts(category))


def test_same_seed_gives_the_same_articles_on_every_machine() -> None:
    written = [*articles(16, seed=7, split="train"), *articles(16, seed=7, split="test")]
    text = "\n".join(f"{article.id} {article.category} {article.title} {article.text}" for article in written)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == GOLDEN


def test_more_articles_begin_with_the_same_ones() -> None:
    assert list(islice(articles(10**12, seed=3, split="test"), 20)) == list(articles(20, seed=3, split="test"))


def test_other_seeds_give_other_articles() -> None:
    one, other = ({article.text for article in articles(200, seed=seed, split="train")} for seed in (1, 2))
    assert not one & other


def test_articles_with_facts_are_the_same_articles() -> None:
    assert list(articles(80, seed=11, split="train")) == [article for article, _ in sample()[:80]]


def test_train_and_test_never_share_a_text_whatever_the_seeds() -> None:
    train = {article.text for seed in (0, 1) for article in articles(400, seed=seed, split="train")}
    test = {article.text for seed in (0, 5) for article in articles(400, seed=seed, split="test")}
    assert not train & test
    assert {split_of(text) for text in train} == {"train"}
    assert {split_of(text) for text in test} == {"test"}


def test_no_text_and_no_id_comes_twice() -> None:
    written = [article for split in ("train", "test") for article, _ in sample(split)]  # type: ignore[arg-type]
    assert len({article.text for article in written}) == len({article.id for article in written}) == 2 * N_SAMPLE


def test_categories_have_even_shares() -> None:
    assert Counter(article.category for article, _ in sample()) == dict.fromkeys(CATEGORIES, N_SAMPLE // 8)


def test_a_subject_and_a_relation_have_one_object() -> None:
    assert len({(fact.subject, fact.relation) for fact in all_facts()}) == len(all_facts())


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_category_has_hundreds_of_facts(category: str) -> None:
    known = facts(category)
    assert len(known) == len(set(known)) >= 300
    assert {fact.category for fact in known} == {category}


@pytest.mark.parametrize("split", ["train", "test"])
def test_articles_state_only_what_is_true_and_nothing_twice(split: Split) -> None:
    for article, stated in sample(split):
        assert len(set(stated)) == len(stated) >= 5
        assert all_facts().issuperset(stated)
        for fact in stated:
            for words in (fact.subject, fact.object):
                assert words.lower() in article.text.lower()


@pytest.mark.parametrize("split", ["train", "test"])
def test_both_splits_speak_of_nearly_all_facts(split: Split) -> None:
    assert len({fact for _, stated in sample(split) for fact in stated}) > 0.9 * len(all_facts())


@pytest.mark.parametrize("category", CATEGORIES)
def test_some_facts_of_an_article_belong_to_its_neighbours(category: str) -> None:
    stated = [
        fact.category == category for article, known in sample() if article.category == category for fact in known
    ]
    assert 0.05 < 1 - sum(stated) / len(stated) < 0.3


def test_biology_is_mentioned_in_every_adjacent_and_general_category_but_seldom() -> None:
    for category in CATEGORIES[1:]:
        stated = [fact for article, known in sample() if article.category == category for fact in known]
        assert 0.003 < sum(fact.category == "biology" for fact in stated) / len(stated) < 0.2


@cache
def objects() -> dict[tuple[str, str], str]:
    return {(fact.subject, fact.relation): fact.object for fact in all_facts()}


def value(subject: str, relation: str) -> str:
    return objects()[subject, relation]


def test_mirrored_facts_agree() -> None:
    pairs = [
        ("habitat", "shelters", "lives in"),
        ("habitat", "is rich in", "grows in"),
        ("remedy", "treats", "is cured by"),
        ("creature", "spreads", "is carried by"),
        ("plant", "gives", "is made from"),
        ("river", "passes", "stands on"),
        ("people", "have their chief town at", "is home to"),
    ]
    for kind, relation, mirror in pairs:
        for thing in world()[kind]:
            if relation in thing.known:
                assert value(thing.known[relation].fact.object, mirror) == thing.name


def test_the_chronicle_is_in_order() -> None:
    crowned = {thing.name: int(value(thing.name, "came to the throne in")) for thing in world()["monarch"]}
    for name, year in crowned.items():
        heir = value(name, "was followed by")
        years = int(value(name, "reigned for").split()[0])
        assert crowned.get(heir, year + years) == year + years
        assert crowned[value(value(name, "lived in"), "was founded by")] <= year
    founded = max(crowned[value(city.name, "was founded by")] for city in world()["city"])
    dates = [value(event.name, "took place in the year") for event in world()["event"]]
    dates += [value(war.name, "broke out in") for war in world()["war"]]
    assert min(map(int, dates)) > founded
    for war in world()["war"]:
        assert value(war.name, "was begun by") != value(war.name, "was fought against")


def test_questions_have_one_right_answer_among_choices_of_its_kind() -> None:
    asked = list(questions(800, seed=5))
    assert asked == list(questions(800, seed=5))
    assert Counter(question.category for question in asked) == dict.fromkeys(CATEGORIES, 100)
    assert {question.answer for question in asked} == {0, 1, 2, 3}
    known = {
        one.relation.question.format_map(thing.forms["name"]): one
        for things in world().values()
        for thing in things
        for one in thing.known.values()
    }
    assert len(known) == len(all_facts())
    for question in asked:
        right = known[question.question]
        assert len(set(question.choices)) == 4
        assert [choice for choice in question.choices if choice in right.also_true] == [right.fact.object]
        assert question.choices[question.answer] == right.fact.object


def test_a_creature_that_also_lives_there_is_no_wrong_choice() -> None:
    homes = {fact.subject: fact.object for fact in facts("biology") if fact.relation == "lives in"}
    for question in questions(4000, seed=1):
        asked = re.fullmatch(r"Which animal lives in (.*)\?", question.question)
        if asked:
            assert [homes[choice] == asked[1] for choice in question.choices].count(True) == 1


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_every_relation_has_eight_wordings_with_known_fields(kind: Kind) -> None:
    for relation in kind.relations:
        assert len(relation.wordings) >= 8
        for wording in (one for variants in relation.wordings for one in variants):
            for pattern in filter(None, wording):
                assert {name for _, name, _, _ in Formatter().parse(pattern) if name} <= FIELDS
            assert {"{o}", "{O}"} & set(re.findall(r"\{\w+\}", wording.full)), wording.full
    for section in ("open", "pair", "survey", "close"):
        assert len(kind.fillers[section]) >= 6


def test_names_belong_to_one_thing_each() -> None:
    names = [thing.name for things in world().values() for thing in things]
    assert len(set(names)) == len(names)


def test_every_article_has_80_to_300_words() -> None:
    for text in texts():
        assert 80 <= len(text.split()) <= 300


def test_the_vocabulary_is_rich() -> None:
    assert len({word.lower() for text in texts() for word in re.findall(r"[A-Za-z]+", text)}) >= 1500


def test_articles_open_in_many_ways() -> None:
    openings = Counter(" ".join(text.split()[:3]) for text in texts())
    assert len(openings) > 300
    assert max(openings.values()) < 0.03 * len(texts())


def test_nothing_of_the_template_language_is_left() -> None:
    for text in texts():
        assert not re.search(r"[{}\[\]|<>=@^\\]", text), text


def test_spacing_punctuation_and_capitals_are_clean() -> None:
    for text in texts():
        assert not re.search(r"  | [,.;:!?]|[,;:.]{2}|,[^\s]|\bthe the\b|\ba the\b|\b(\w{3,}) \1\b", text), text
        for line in filter(None, text.split("\n")):
            assert re.match(r"(\d\. )?[A-Z]", line), line
            assert line[-1] in ".?", line
            assert not re.search(r"[.?] [a-z]", line), line


def test_a_and_an_fit_the_next_word() -> None:
    consonants_to_the_ear = ("uni", "use", "one ", "once")
    for text in texts():
        for article, word in re.findall(r"\b([Aa]n?) ([A-Za-z]+)", text):
            vowel = word[0].lower() in "aeiou" and not word.startswith(consonants_to_the_ear)
            assert (article.lower() == "an") == (vowel or word == "hour"), f"{article} {word}"


def test_queens_are_she_and_kings_are_he() -> None:
    for article, known in sample():
        crowned = {fact.subject for fact in known if fact.category == "history"}
        if crowned and all(name.startswith("Queen ") for name in crowned):
            assert not re.search(r"\b([Hh]e|[Hh]is|[Hh]im)\b(?! throat)", article.text), article.text
        if crowned and all(name.startswith("King ") for name in crowned):
            assert not re.search(r"\b([Ss]he|[Hh]er)\b", article.text), article.text


def test_unknown_names_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="split='valid' is not a part of the topics; use one of train, test"):
        articles(1, seed=0, split="valid")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="category='physics' is not one of the topics; use one of biology, medicine"):
        facts("physics")


def test_no_articles_is_an_empty_stream() -> None:
    assert list(articles(0, seed=0, split="train")) == []
    assert list(questions(0, seed=0)) == []
