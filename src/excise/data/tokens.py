"""Text to tokens and back: a thin wrapper around HuggingFace `tokenizers`, and the tokenizer of the embedded stories.

Byte-level BPE in the manner of GPT-2 is encoded by `tiktoken`, which gives the same tokens several times faster.

`python -m excise.data.tokens` trains that tokenizer again and overwrites the shipped file: to be done after any change
to the plots or words in `story/`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

from excise.data.stories import stories

END_OF_TEXT = "<|endoftext|>"
STORY_TOKENIZER = Path(__file__).with_name("stories_tokenizer.json")
STORY_VOCABULARY_SIZE = 4096
STORIES_TO_TRAIN_ON = 10_000
VERIFIED = {
    "stories": "784c767c1fc0e19f9f789dbf44bafc0a4e8cbbb7764785f2220c496751c676ad",
    "gpt2": "a5cbc135b0f9df854bf1a815ced2bce7f0fd366ae60a02a6257fd2182e89889b",
}
"""Digests of tokenizers whose fast encoding the tests have compared with HuggingFace's on much text."""


def smallest_type(n: int) -> type[np.unsignedinteger[Any]]:
    """The smallest unsigned type for numbers below n."""
    return np.uint8 if n <= 1 << 8 else np.uint16 if n <= 1 << 16 else np.uint32


class Tokenizer:
    """Text to token ids and back, with one special token that stands between documents."""

    def __init__(self, content: dict[str, Any]) -> None:
        """The tokenizer that a `tokenizer.json` with this content describes."""
        self._content = content
        self._fast = _fast_encoding(content)
        special = [token["id"] for token in content["added_tokens"] if token["content"] == END_OF_TEXT]
        if not special:
            raise ValueError(
                f"the tokenizer has no {END_OF_TEXT} token to separate documents; add it and save it again"
            )
        self.end_of_text: int = special[0]
        # HuggingFace's takes a while to load, and is rarely needed where the fast one does the same.
        self.vocabulary_size: int = _vocabulary_size(content) if self._fast else self._inner.get_vocab_size()

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """The tokenizer in any `tokenizer.json` that has an end-of-text token."""
        if not path.is_file():
            raise ValueError(f"there is no tokenizer at {path}; give the path of a tokenizer.json")
        try:
            return cls(json.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be used: {error}") from error

    @cached_property
    def _inner(self) -> tokenizers.Tokenizer:
        try:
            inner = tokenizers.Tokenizer.from_str(self._canonical_json)
        except Exception as error:  # which is the only kind that tokenizers raises
            raise ValueError(error) from None
        # A document that happens to contain the separator must not end there, so it is encoded as plain text.
        inner.encode_special_tokens = True
        return inner

    def save(self, path: Path) -> None:
        """Writes the canonical JSON, the one that `sha256` is the digest of."""
        path.write_bytes(self.as_json)

    @property
    def as_json(self) -> bytes:
        """The content of its file."""
        return self._canonical_json.encode()

    @cached_property
    def sha256(self) -> str:
        """The digest that manifests record: the same digest means the same tokens."""
        return hashlib.sha256(self.as_json).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The tokens of one text, without any special token."""
        return [int(token) for token in self.encode_array(text)]

    def encode_array(self, text: str) -> NDArray[Any]:
        """The tokens of one text as an array of the smallest type that holds the vocabulary."""
        if self._fast is None:
            return np.array(self._inner.encode(text, add_special_tokens=False).ids, self.dtype)
        encoding, token_of_rank = self._fast
        return token_of_rank[np.array(encoding.encode_ordinary(text), np.uint32)]

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        return smallest_type(self.vocabulary_size)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of one text, and the characters that each stands for; by HuggingFace's implementation."""
        encoding = self._inner.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, special ones included."""
        return str(self._inner.decode(list(tokens), skip_special_tokens=False))

    @cached_property
    def _canonical_json(self) -> str:
        return json.dumps(self._content, ensure_ascii=False, separators=(",", ":")) + "\n"


GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""Words as GPT-2 cuts them."""


def _fast_encoding(content: dict[str, Any]) -> tuple[tiktoken.Encoding, NDArray[Any]] | None:
    """The same tokenizer for `tiktoken`, with the token of each of its ranks; None where it cannot express it."""
    model, before = content["model"], content["pre_tokenizer"] or {}
    gpt2_words = before.get("type") == "ByteLevel" and before["use_regex"] and not before["add_prefix_space"]
    unusual = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    added = any(not token["special"] for token in content["added_tokens"])
    if model["type"] != "BPE" or not gpt2_words or content["normalizer"] or added or any(map(model.get, unusual)):
        return None
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
    written = [*_byte_characters(), *("".join(pair) for pair in pairs)]
    if len(set(written)) != len(written) or not set(written) <= set(model["vocab"]):
        return None
    latin = str.maketrans({character: chr(byte) for byte, character in enumerate(_byte_characters())})
    ranks = {token.translate(latin).encode("latin-1"): rank for rank, token in enumerate(written)}
    encoding = tiktoken.Encoding("byte-level", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})
    tokens = [model["vocab"][token] for token in written]
    return encoding, np.array(tokens, smallest_type(_vocabulary_size(content)))


def _vocabulary_size(content: dict[str, Any]) -> int:
    return len(content["model"]["vocab"].keys() | {token["content"] for token in content["added_tokens"]})


def _byte_characters() -> list[str]:
    """The visible character that byte-level BPE writes for each byte: itself, or one from 256 on in its stead."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    stand_ins = iter(range(256, 512))
    return [chr(byte if byte in visible else next(stand_ins)) for byte in range(256)]


@cache
def story_tokenizer() -> Tokenizer:
    """The shipped tokenizer of the embedded stories."""
    return Tokenizer.load(STORY_TOKENIZER)


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of the embedded corpora where the name is `stories`, or that in a tokenizer.json."""
    return story_tokenizer() if name == "stories" else Tokenizer.load(Path(name))


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
    return Tokenizer(json.loads(inner.to_str()))


def train_story_tokenizer() -> Tokenizer:
    """The tokenizer that is shipped, trained again from the train split of the stories, both languages alike."""
    return train_tokenizer(_training_texts(), STORY_VOCABULARY_SIZE)


def _training_texts() -> Iterator[str]:
    for story in stories(STORIES_TO_TRAIN_ON, seed=0, split="train"):
        yield story.english
        yield story.spanish


if __name__ == "__main__":
    train_story_tokenizer().save(STORY_TOKENIZER)
