"""Text to tokens and back: a thin wrapper around HuggingFace `tokenizers`, and the tokenizer of the embedded stories.

`python -m excise.data.tokens` trains that tokenizer again and overwrites the shipped file: to be done after any change
to the plots or words in `story/`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from excise.data.stories import stories

END_OF_TEXT = "<|endoftext|>"
STORY_TOKENIZER = Path(__file__).with_name("stories_tokenizer.json")
STORY_VOCABULARY_SIZE = 4096
STORIES_TO_TRAIN_ON = 10_000


class Tokenizer:
    """Text to token ids and back, with one special token that stands between documents."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        end_of_text = inner.token_to_id(END_OF_TEXT)
        if end_of_text is None:
            raise ValueError(
                f"the tokenizer has no {END_OF_TEXT} token to separate documents; add it and save it again"
            )
        self.end_of_text: int = end_of_text
        self.vocabulary_size: int = inner.get_vocab_size()
        self._inner = inner
        # A document that happens to contain the separator must not end there, so it is encoded as plain text.
        self._inner.encode_special_tokens = True

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """The tokenizer in any `tokenizer.json` that has an end-of-text token."""
        if not path.is_file():
            raise ValueError(f"there is no tokenizer at {path}; give the path of a tokenizer.json")
        try:
            return cls(tokenizers.Tokenizer.from_buffer(path.read_bytes()))
        except ValueError as error:
            raise ValueError(f"{path} cannot be used: {error}") from error

    def save(self, path: Path) -> None:
        """Writes the canonical JSON, the one that `sha256` is the digest of."""
        path.write_text(self._canonical_json(), encoding="utf-8", newline="\n")

    @cached_property
    def sha256(self) -> str:
        """The digest that manifests record: the same digest means the same tokens."""
        return hashlib.sha256(self._canonical_json().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The tokens of one text, without any special token."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of many texts, on all cores."""
        return [encoding.ids for encoding in self._inner.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, special ones included."""
        return str(self._inner.decode(list(tokens), skip_special_tokens=False))

    def _canonical_json(self) -> str:
        content = json.loads(self._inner.to_str())
        return json.dumps(content, ensure_ascii=False, indent=0, separators=(",", ":")) + "\n"


@cache
def story_tokenizer() -> Tokenizer:
    """The shipped tokenizer of the embedded stories."""
    return Tokenizer.load(STORY_TOKENIZER)


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer; it can write any Unicode text, whatever it was trained on."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocabulary_size < len(alphabet) + 1:
        raise ValueError(
            f"vocabulary_size={vocabulary_size} has no room for all bytes; use at least {len(alphabet) + 1}"
        )
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(texts, trainer)
    return Tokenizer(inner)


def train_story_tokenizer() -> Tokenizer:
    """The tokenizer that is shipped, trained again from the train split of the stories, both languages alike."""
    return train_tokenizer(_training_texts(), STORY_VOCABULARY_SIZE)


def _training_texts() -> Iterator[str]:
    for story in stories(STORIES_TO_TRAIN_ON, seed=0, split="train"):
        yield story.english
        yield story.spanish


if __name__ == "__main__":
    train_story_tokenizer().save(STORY_TOKENIZER)
