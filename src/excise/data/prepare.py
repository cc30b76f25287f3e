"""From a source to prepared data: read, hold out a test split, tokenise in parallel, write shards.

The source is cut into shares in its order, not parsed yet where that can wait, and each share becomes a shard, or two
where some of its documents are held out. What they hold depends on nothing but the share, so any number of processes or
machines writes the same bytes, and whatever was finished before an interruption is not done again.
"""

import gzip
import hashlib
import heapq
import json
import logging
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from excise.data import engines
from excise.data.documents import BadRow, BadRows, Document, Lines, Piece, Rows, Span, rows_of
from excise.data.shards import (
    FINISHED,
    LABELS_ARE_CATEGORIES,
    TOKENIZER,
    Finished,
    Manifest,
    Shard,
    is_prepared,
    read_finished,
    read_manifest,
    write_finished,
    write_manifest,
    write_shard,
)
from excise.data.sources import TEST, TRAIN, Source, SourceConfig, Split, open_source
from excise.data.tokenised import tokenise
from excise.data.tokens import VERIFIED, Tokenizer, load_tokenizer, train_tokenizer
from excise.files import sha256_of, write_whole

PLAN, LABELS = "plan.json", "labels.jsonl.gz"
OURS = re.compile(rf"(train|test)-\d{{5,}}(\.\w+\.npy|{re.escape(FINISHED)})|{re.escape(TOKENIZER)}|{re.escape(PLAN)}")
"""The names of what a preparation writes before its manifest."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """How a source becomes shards."""

    source: SourceConfig = field(default_factory=SourceConfig)
    tokenizer: str = "stories"
    """`stories` for the embedded tokenizer, the path of a tokenizer.json, or `train:4096` for one of so many tokens that is
    trained on the source."""
    labels: str = ""
    """A folder written by `excise label`, whose labels replace the source's own; with --source.fields.category '' they
    stand for the categories too."""
    test_share: float = 0.05
    """Share of the documents held out where the source has no test split."""
    test_per_category: int = 0
    """Documents of each category held out instead of a share, as in the paper (5000); at most half of a category."""
    shard_mb: float = 4.0
    """Megabytes of the source that become a shard."""
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
    """A run of one split of the source."""

    split: Split
    number: int
    pieces: Sequence[Piece]

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:05d}"


Listener = Callable[[Shard], None]
N_SAMPLES, LONGEST_SAMPLE = 20_000, 10_000
"""Documents that a tokenizer is trained on, and characters of each."""


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
    _forget_failure(out)
    tokenizer = _tokenizer_for(opened, out, config)
    plan = _plan(opened, config, tokenizer)
    if is_prepared(out):
        _check_same(read_manifest(out).source, plan, out)
        return read_manifest(out)
    _start(out, plan, tokenizer)
    TOKENIZERS[out] = tokenizer  # workers that are forked need not load it
    work = partial(make_shards, out, _held_out(opened, config))
    bad = _bad_rows(config)
    done: list[Finished] = []
    for finished in engines.run(engine, work, _shares(opened, config), processes):
        done.append(finished)
        bad.add(finished.bad)
        for shard in finished.shards:
            listener(shard)
    del TOKENIZERS[out]
    manifest = _manifest(plan, tokenizer, done, bad)
    write_manifest(out, manifest)
    (out / PLAN).unlink()
    if manifest.labels_are_categories:
        logger.warning("%s %s", out, LABELS_ARE_CATEGORIES)
    return manifest


def _bad_rows(config: PrepareConfig) -> BadRows:
    return BadRows(config.bad_rows, remedy="mend them, or raise --bad-rows")


def _manifest(plan: dict[str, Any], tokenizer: Tokenizer, done: Sequence[Finished], bad: BadRows) -> Manifest:
    bad.check()
    shards = sorted((shard for finished in done for shard in finished.shards), key=lambda shard: _order(shard.name))
    if not shards or shards[0].split != TRAIN:
        raise ValueError(f"the source {plan['source']!r} holds no document to train on")
    in_order = sorted(done, key=lambda finished: _order(finished.share))
    return Manifest(
        source=plan,
        tokenizer_sha256=tokenizer.sha256,
        vocabulary_size=tokenizer.vocabulary_size,
        n_rows=bad.n_rows,
        n_bad_rows=bad.n_bad,
        first_bad_rows=tuple(row for finished in in_order for row in finished.bad.first)[:5],
        shards=tuple(shards),
    )


def _order(name: str) -> tuple[bool, str]:
    return not name.startswith(TRAIN), name


def make_shards(out: Path, held_out: Callable[[Document], bool], share: Share) -> Finished:
    """Parse, tokenise and write a share, unless a run that was interrupted has done so."""
    finished = read_finished(out, share.name)
    if finished is None:
        bad, documents = BadRows(), defaultdict[Split, list[Document]](list)
        for document in bad.skip(share.pieces):
            documents[TEST if held_out(document) else share.split].append(document)
        shards = (_make_shard(out, f"{split}-{share.number:05d}", split, some) for split, some in documents.items())
        finished = Finished(share=share.name, shards=tuple(shards), bad=bad)
        write_finished(out, finished)
    return finished


def _make_shard(out: Path, name: str, split: Split, documents: Sequence[Document]) -> Shard:
    tokenizer = _tokenizer_in(out)
    if name == "train-00000" and tokenizer.sha256 not in VERIFIED.values():
        _audit(tokenizer, documents)
    data = tokenise(documents, tokenizer)
    text_bytes = sum(n_bytes(document.text) for document in documents)  # fast only once they are encoded
    return write_shard(out, name, split, data, text_bytes)


TOKENIZERS: dict[Path, Tokenizer] = {}
"""Those that this process has loaded, by the folder they prepare."""


def _tokenizer_in(out: Path) -> Tokenizer:
    if out not in TOKENIZERS:
        TOKENIZERS[out] = Tokenizer.load(out / TOKENIZER)
    return TOKENIZERS[out]


def _audit(tokenizer: Tokenizer, documents: Sequence[Document]) -> None:
    """The fast encoder must agree with HuggingFace's on the beginnings of the first documents."""
    for document in documents[:20]:
        text = document.text[:1000]
        assert tokenizer.encode(text) == tokenizer.encode_with_offsets(text)[0], "tiktoken and tokenizers disagree"


def _tokenizer_for(source: Source, out: Path, config: PrepareConfig) -> Tokenizer:
    kind, _, n_tokens = config.tokenizer.partition(":")
    if kind != "train":
        return load_tokenizer(config.tokenizer)
    if not n_tokens.isdecimal():
        raise ValueError(f"tokenizer={config.tokenizer!r} does not say how many tokens; write train:4096")
    if (out / TOKENIZER).exists():
        return Tokenizer.load(out / TOKENIZER)
    return train_tokenizer(_sample(source, config), int(n_tokens))


def _sample(source: Source, config: PrepareConfig) -> list[str]:
    """The beginnings of training documents from all over the source, each as likely as any other."""
    random, held_out, n_seen = np.random.default_rng(config.seed), _held_out(source, config), 0
    kept: list[str] = []
    for document in _bad_rows(config).skip(_training_pieces(source, config)):
        if held_out(document):
            continue
        text = document.text[:LONGEST_SAMPLE]
        place = int(random.integers(n_seen + 1))
        if len(kept) < N_SAMPLES:
            kept.append(text)
        elif place < N_SAMPLES:
            kept[place] = text
        n_seen += 1
    return kept


def _plan(source: Source, config: PrepareConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything that decides the bytes of the shards."""
    options = {name: value for name, value in asdict(config).items() if name != "source"}
    if config.labels and not (Path(config.labels) / LABELS).exists():
        raise ValueError(f"{config.labels} holds no {LABELS}; write it with: excise label SOURCE --out {config.labels}")
    labels = sha256_of(Path(config.labels) / LABELS) if config.labels else ""
    described = {"tokenizer": tokenizer.sha256, "labels": labels, "fields": asdict(config.source.fields)}
    if config.tokenizer.startswith("train:"):
        described["trained"] = config.tokenizer
    plan: dict[str, Any] = json.loads(json.dumps({**source.description, "options": options | described}))
    return plan


def _check_same(there: Any, plan: dict[str, Any], out: Path) -> None:
    if there != plan:
        raise ValueError(
            f"{out} was prepared from something else ({_differing(there, plan)} differ); choose another folder"
        )


def _check_goes_on(there: dict[str, Any], plan: dict[str, Any], out: Path) -> None:
    """What was begun must be what is asked for, save the limit of bad rows, which decides no byte of a shard."""
    same_limit = plan["options"] | {"bad_rows": there["options"]["bad_rows"]}
    if there != plan | {"options": same_limit}:
        raise ValueError(
            f"{out} is half prepared from something else ({_differing(there, plan)} differ); "
            "give the same options as before to finish it, delete it, or choose another folder"
        )


def _differing(there: dict[str, Any], plan: dict[str, Any]) -> str:
    return ", ".join(key for key in plan | there if plan.get(key) != there.get(key))


def _forget_failure(out: Path) -> None:
    """An attempt that came to an end before any shard was whole leaves nothing that the next could go on with."""
    if not (out / PLAN).exists() or is_prepared(out):
        return
    finished = (read_finished(out, file.name.removesuffix(FINISHED)) for file in out.glob("*" + FINISHED))
    if any(share.shards for share in finished if share):
        return
    for file in out.iterdir():
        if OURS.fullmatch(file.name):
            file.unlink()


def _start(out: Path, plan: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Say what is going to stand in the folder, or check that it is the same as before an interruption."""
    file = out / PLAN
    if file.exists():
        _check_goes_on(json.loads(file.read_text(encoding="utf-8")), plan, out)
    elif out.exists() and any(path.suffix != ".part" for path in out.iterdir()):
        raise ValueError(f"{out} is not empty and holds no prepared data; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(plan).encode())
    tokenizer.save(out / TOKENIZER)


def _shares(source: Source, config: PrepareConfig) -> Iterator[Share]:
    """All splits, in runs of a few megabytes."""
    for split, read in _labelled(source, config):
        number, size, pieces = 0, 0, list[Piece]()
        for piece in read:
            pieces.append(piece)
            size += _size(piece)
            if size >= config.shard_mb * 1e6:
                yield Share(split, number, pieces)
                number, size, pieces = number + 1, 0, []
        if pieces:
            yield Share(split, number, pieces)


def _labelled(source: Source, config: PrepareConfig) -> Iterator[tuple[Split, Iterator[Piece]]]:
    """The pieces of all splits, with the labels that they are to have; each split is read to its end before the next."""
    labels = read_labels(Path(config.labels)) if config.labels else None
    for split, read in source.splits.items():
        yield split, _relabelled_rows(rows_of(read()), labels, config) if labels else read()


def _training_pieces(source: Source, config: PrepareConfig) -> Iterator[Piece]:
    """Those of the training split; where the source has a test split as well, their labels do not matter."""
    if TEST in source.splits:
        return source.splits[TRAIN]()
    return next(pieces for _, pieces in _labelled(source, config))


def _size(piece: Piece) -> int:
    if isinstance(piece, Lines):
        return len(piece.content)
    return n_bytes(piece.text) if isinstance(piece, Document) else 0


def n_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _relabelled_rows(rows: Rows, labels: Iterator[dict[str, Any]], config: PrepareConfig) -> Rows:
    for row in rows:
        if isinstance(row, BadRow):
            yield row
            continue
        document = relabelled(row, next(labels, None))
        yield document if config.source.fields.category else replace(document, category=document.label)


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
        return _never
    place = partial(_place, config.seed, source.group_of)
    if not config.test_per_category:
        return partial(_is_before, place, config.test_share * 2**64, {})
    n: Counter[str] = Counter()
    smallest: dict[str, list[int]] = {}
    for document in _bad_rows(config).skip(_training_pieces(source, config)):
        n[document.category] += 1
        heap = smallest.setdefault(document.category, [])
        push = heapq.heappush if len(heap) < config.test_per_category else heapq.heappushpop
        push(heap, -place(document))  # a heap keeps the largest, and the smallest hashes are wanted
    chosen = {category: sorted(-h for h in heap)[: n[category] // 2] for category, heap in smallest.items()}
    return partial(_is_before, place, 0, {name: hashes[-1] + 1 for name, hashes in chosen.items() if hashes})


def _never(document: Document) -> bool:
    return False


def _is_before(place: Callable[[Document], int], limit: float, limits: Mapping[str, float], document: Document) -> bool:
    return place(document) < limits.get(document.category, limit)


def _place(seed: int, group_of: Callable[[Document], str], document: Document) -> int:
    digest = hashlib.blake2b(f"{seed}:{group_of(document)}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
