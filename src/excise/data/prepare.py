"""From a source to prepared data: read, hold out a test split, tokenise in parallel, write shards.

The documents are cut into shares in the order of the source, and each share becomes a shard. What a shard holds depends
on nothing but its share, so any number of processes or machines writes the same bytes, and whatever was finished before
an interruption is not done again.
"""

import gzip
import hashlib
import heapq
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from excise.data import engines
from excise.data.documents import BadRows, Document, Span
from excise.data.shards import (
    TOKENIZER,
    Manifest,
    Shard,
    finished_shard,
    is_prepared,
    read_manifest,
    verify,
    write_manifest,
    write_shard,
)
from excise.data.sources import TEST, TRAIN, Source, SourceConfig, Split, open_source
from excise.data.tokenised import tokenise
from excise.data.tokens import Tokenizer, load_tokenizer
from excise.files import sha256_of, write_whole

PLAN, LABELS = "plan.json", "labels.jsonl.gz"


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """How a source becomes shards."""

    source: SourceConfig = field(default_factory=SourceConfig)
    tokenizer: str = "stories"
    """`stories` for the embedded tokenizer, or the path of a tokenizer.json."""
    labels: str = ""
    """A folder written by `excise label`, whose labels replace the source's own."""
    test_share: float = 0.05
    """Share of the documents held out where the source has no test split."""
    test_per_category: int = 0
    """Documents of each category held out instead of a share, as in the paper (5000); at most half of a category."""
    shard_mb: float = 4.0
    """Megabytes of text in a shard."""
    bad_rows: float = 0.01
    """Share of rows without text, without category or in another encoding that is put up with."""
    seed: int = 0
    """Of what is held out."""

    def __post_init__(self) -> None:
        for name in ("test_share", "bad_rows"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name):g} is a share, from 0 to below 1")
        if self.shard_mb <= 0:
            raise ValueError(f"shard_mb={self.shard_mb:g} must be above 0")


@dataclass(frozen=True)
class Share:
    """Documents that become one shard."""

    name: str
    split: Split
    documents: tuple[Document, ...]
    text_bytes: int


Listener = Callable[[Shard], None]


def prepare(
    source: str,
    out: Path,
    config: PrepareConfig | None = None,
    *,
    engine: engines.Engine = "local",
    processes: int = 1,
    listener: Listener = lambda shard: None,
) -> Manifest:
    """Write a source as prepared data to a folder; what is done already is not done again."""
    config = config or PrepareConfig()
    opened = open_source(source, config.source)
    tokenizer = load_tokenizer(config.tokenizer)
    plan = _plan(opened, config, tokenizer)
    if is_prepared(out):
        _check_same(read_manifest(out).source, plan, out)
        return read_manifest(out)
    _start(out, plan, tokenizer)
    TOKENIZERS[out] = tokenizer  # workers that are forked need not load it
    bad = BadRows(config.bad_rows)
    done: list[Shard] = []
    for shard in engines.run(engine, partial(make_shard, out), _shares(opened, config, bad), processes):
        done.append(shard)
        listener(shard)
    del TOKENIZERS[out]
    if not any(shard.split == TRAIN for shard in done):
        raise ValueError(f"the source {source!r} holds no document to train on")
    manifest = Manifest(
        source=plan,
        tokenizer_sha256=tokenizer.sha256,
        vocabulary_size=tokenizer.vocabulary_size,
        n_rows=bad.n_rows,
        n_bad_rows=bad.n_bad,
        first_bad_rows=tuple(bad.first),
        shards=tuple(sorted(done, key=lambda shard: (shard.split != TRAIN, shard.name))),
    )
    write_manifest(out, manifest)
    (out / PLAN).unlink()
    return manifest


def make_shard(out: Path, share: Share) -> Shard:
    """Tokenise and write a share, unless a run that was interrupted has done so."""
    shard = finished_shard(out, share.name)
    if shard is not None:
        try:
            verify(out, shard)
        except ValueError:
            shard = None
    if shard is None:
        tokenizer = _tokenizer_in(out)
        if share.name.endswith("-00000"):
            _audit(tokenizer, share.documents)
        data = tokenise(share.documents, tokenizer)
        shard = write_shard(out, share.name, share.split, data, share.text_bytes)
    return shard


TOKENIZERS: dict[Path, Tokenizer] = {}
"""Those that this process has loaded, by the folder they prepare."""


def _tokenizer_in(out: Path) -> Tokenizer:
    if out not in TOKENIZERS:
        TOKENIZERS[out] = Tokenizer.load(out / TOKENIZER)
    return TOKENIZERS[out]


def _audit(tokenizer: Tokenizer, documents: Sequence[Document]) -> None:
    """The fast encoder must agree with HuggingFace's on the beginnings of the first documents of every split."""
    for document in documents[:20]:
        text = document.text[:1000]
        assert tokenizer.encode(text) == tokenizer.encode_with_offsets(text)[0], "tiktoken and tokenizers disagree"


def _plan(source: Source, config: PrepareConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything that decides the bytes of the shards."""
    options = {name: value for name, value in asdict(config).items() if name != "source"}
    labels = sha256_of(Path(config.labels) / LABELS) if config.labels else ""
    described = {"tokenizer": tokenizer.sha256, "labels": labels, "fields": asdict(config.source.fields)}
    plan: dict[str, Any] = json.loads(json.dumps({**source.description, "options": options | described}))
    return plan


def _check_same(there: Any, plan: dict[str, Any], out: Path) -> None:
    if there != plan:
        differing = [key for key in plan | there if plan.get(key) != there.get(key)]
        raise ValueError(
            f"{out} was prepared from something else ({', '.join(differing)} differ); choose another folder"
        )


def _start(out: Path, plan: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Say what is going to stand in the folder, or check that it is the same as before an interruption."""
    file = out / PLAN
    if file.exists():
        _check_same(json.loads(file.read_text(encoding="utf-8")), plan, out)
    elif out.exists() and any(path.suffix != ".part" for path in out.iterdir()):
        raise ValueError(f"{out} is not empty and holds no prepared data; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(plan).encode())
    tokenizer.save(out / TOKENIZER)


def _shares(source: Source, config: PrepareConfig, bad: BadRows) -> Iterator[Share]:
    """The documents of all splits, in runs of a few megabytes of text."""
    waiting: dict[Split, list[Document]] = {TRAIN: [], TEST: []}
    text_bytes: dict[Split, int] = {TRAIN: 0, TEST: 0}
    n_shares: Counter[Split] = Counter()

    def share(split: Split) -> Share:
        name = f"{split}-{n_shares[split]:05d}"
        ready = Share(name, split, tuple(waiting[split]), text_bytes[split])
        waiting[split], text_bytes[split] = [], 0
        n_shares[split] += 1
        return ready

    for split, document in _documents(source, config, bad):
        waiting[split].append(document)
        text_bytes[split] += n_bytes(document.text)
        if text_bytes[split] >= config.shard_mb * 1e6:
            yield share(split)
    yield from (share(split) for split in (TRAIN, TEST) if waiting[split])


def n_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _documents(source: Source, config: PrepareConfig, bad: BadRows) -> Iterator[tuple[Split, Document]]:
    held_out = _held_out(source, config)
    labels = read_labels(Path(config.labels)) if config.labels else None
    for split, read in source.splits.items():
        for document in bad.skip(read()):
            if labels:
                document = relabelled(document, next(labels, None))
            yield (TEST if held_out(document) else split), document


def read_labels(folder: Path) -> Iterator[dict[str, Any]]:
    """What `excise label` says of each document, in the order of the source."""
    try:
        with gzip.open(folder / LABELS, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)
    except (OSError, EOFError, zlib.error, json.JSONDecodeError) as error:
        raise ValueError(f"the labels in {folder / LABELS} cannot be read ({error})") from None


def relabelled(document: Document, line: dict[str, Any] | None) -> Document:
    if line is None or line["id"] != document.id:
        found = "nothing" if line is None else line["id"]
        raise ValueError(f"the labels are of another source: {found} stands where {document.id} should")
    spans = tuple(Span(*span) for span in line.get("spans", ()))
    return replace(document, label=line["label"], spans=spans)


def _held_out(source: Source, config: PrepareConfig) -> Callable[[Document], bool]:
    """Whether a document is for the test, by a hash of its id: the same whatever else the source holds."""
    if TEST in source.splits:
        return lambda document: False

    def place(document: Document) -> int:
        return _hash(f"{config.seed}:{source.group_of(document)}")

    if not config.test_per_category:
        return lambda document: place(document) < config.test_share * 2**64
    n: Counter[str] = Counter()
    smallest: dict[str, list[int]] = {}
    for document in BadRows(config.bad_rows).skip(source.splits[TRAIN]()):
        n[document.category] += 1
        heap = smallest.setdefault(document.category, [])
        push = heapq.heappush if len(heap) < config.test_per_category else heapq.heappushpop
        push(heap, -place(document))  # a heap keeps the largest, and the smallest hashes are wanted
    limits = {
        category: sorted(-h for h in heap)[: n[category] // 2][-1:] or [-1] for category, heap in smallest.items()
    }
    return lambda document: place(document) <= limits[document.category][0]


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
