"""The tokenizer: reversible for any text, reproducible from the corpus, and safe against separators in documents."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models

from excise.data.stories import stories
from excise.data.tokens import (
    STORY_TOKENIZER,
    VERIFIED,
    Tokenizer,
    story_tokenizer,
    train_story_tokenizer,
    train_tokenizer,
)


@given(st.text())
def test_any_text_comes_back_unchanged(text: str) -> None:
    assert story_tokenizer().decode(story_tokenizer().encode(text)) == text


def test_stories_come_back_unchanged() -> None:
    texts = [text for story in stories(100, seed=4, split="test") for text in (story.english, story.spanish)]
    assert [story_tokenizer().decode(story_tokenizer().encode(text)) for text in texts] == texts


def test_training_again_gives_the_shipped_file(tmp_path: Path) -> None:
    train_story_tokenizer().save(tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == STORY_TOKENIZER.read_bytes(), (
        "the stories have changed since the tokenizer was trained; run python -m excise.data.tokens"
    )


def test_the_shipped_vocabulary_is_4096_tokens_with_the_separator() -> None:
    assert story_tokenizer().vocabulary_size == 4096
    assert story_tokenizer().decode([story_tokenizer().end_of_text]) == "<|endoftext|>"


def test_sha256_is_that_of_the_shipped_file() -> None:
    assert story_tokenizer().sha256 == hashlib.sha256(STORY_TOKENIZER.read_bytes()).hexdigest()


def test_sha256_survives_saving_and_tells_tokenizers_apart(tmp_path: Path) -> None:
    small = train_tokenizer(["a kite", "una cometa"], 260)
    small.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").sha256 == small.sha256 != story_tokenizer().sha256


WORDS = st.lists(
    st.text(max_size=6) | st.sampled_from([" ", "  ", "\n", "'s", "'ll", "\u00a0", "niña", "123"]), max_size=12
)


@given(WORDS)
def test_the_fast_encoder_gives_the_tokens_of_the_other(words: list[str]) -> None:
    text = "".join(words)
    assert story_tokenizer()._fast is not None
    assert story_tokenizer().encode(text) == story_tokenizer().encode_with_offsets(text)[0]


def test_the_shipped_tokenizer_is_verified_on_many_stories() -> None:
    assert story_tokenizer().sha256 == VERIFIED["stories"]
    for story in stories(300, seed=1, split="test"):
        for text in (story.english, story.spanish):
            assert story_tokenizer().encode(text) == story_tokenizer().encode_with_offsets(text)[0]


def test_a_tokenizer_that_the_fast_encoder_cannot_express_is_left_to_the_other() -> None:
    inner = train_tokenizer(["a kite", "una cometa"], 260)._inner
    inner.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer = Tokenizer(json.loads(inner.to_str()))
    assert tokenizer._fast is None
    assert tokenizer.decode(tokenizer.encode("A KITE")) == "a kite"


def test_a_separator_inside_a_document_is_plain_text() -> None:
    tokens = story_tokenizer().encode("one<|endoftext|>two")
    assert story_tokenizer().end_of_text not in tokens
    assert story_tokenizer().decode(tokens) == "one<|endoftext|>two"


def test_both_languages_cost_about_the_same() -> None:
    told = list(stories(200, seed=9, split="test"))
    tokenizer = story_tokenizer()
    english = sum(len(tokenizer.encode(story.english)) for story in told)
    spanish = sum(len(tokenizer.encode(story.spanish)) for story in told)
    assert 0.85 < english / spanish < 1.15


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ValueError, match=r"there is no tokenizer at nowhere\.json"):
        Tokenizer.load(Path("nowhere.json"))


def test_a_tokenizer_without_a_separator_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizers.Tokenizer(models.BPE()).to_str(), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be used: .* no <\|endoftext\|> token"):
        Tokenizer.load(path)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"not": "a tokenizer"}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be used"):
        Tokenizer.load(path)


def test_a_vocabulary_too_small_for_all_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary_size=100 has no room for all bytes; use at least 257"):
        train_tokenizer(["text"], 100)
