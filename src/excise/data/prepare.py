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
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np

from excise.config import read_object
from excise.data import engines
from excise.data.documents import BadRow, BadRows, Document, Fields, Lines, Piece, Rows, Span, rows_of
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
from excise.data.slips import slips_in
from excise.data.sources import (
    TEST,
    TRAIN,
    Source,
    SourceConfig,
    Split,
    check_source_options,
    kind_of,
    open_source,
)
from excise.data.tokenised import tokenise
from excise.data.tokens import VERIFIED, Tokenizer, load_tokenizer, train_tokenizer
from excise.files import sha256_of, write_whole
from excise.labels import UNLABELED, nearest, why_no_label

PLAN, FAILED, LABELS = "plan.json", "failed", "labels.jsonl.gz"
OURS = re.compile(
    rf"(train|test)-\d{{5,}}(\.\w+\.npy|{re.escape(FINISHED)})|{re.escape(TOKENIZER)}|{re.escape(PLAN)}|{FAILED}"
)
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
    label: tuple[str, ...] = ()
    """Labels from categories, as `biology=biology` or `retain=history,geography`; documents of others keep the labels that
    they have."""
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
        if self.label and (self.labels or not self.source.fields.category):
            other = "--labels" if self.labels else "--source.fields.category ''"
            raise ValueError(
                f"--label gives labels by categories, and {other} does not go with it; leave out one of them"
            )
        for label, _, categories in (entry.partition("=") for entry in self.label):
            if not all(categories.split(",")) or label == UNLABELED:
                raise ValueError(
                    f"label has {f'{label}={categories}'!r}; write retain=category,category or domain=category"
                )
            if why := why_no_label(label):
                raise ValueError(f"label has {label!r}: {why}")
        if len(self.label_of) < sum(len(entry.split(",")) for entry in self.label):
            raise ValueError(f"label={' '.join(self.label)} has a category twice; give it one label")

    @property
    def label_of(self) -> dict[str, str]:
        """The label of each category that gives one."""
        pairs = (entry.partition("=") for entry in self.label)
        return {category: label for label, _, categories in pairs for category in categories.split(",")}


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
    _check_options(source, opened, config)
    _forget_failure(out, _plan(opened, config))
    tokenizer = _tokenizer_for(opened, out, config)
    plan = _plan(opened, config, tokenizer.sha256)
    if is_prepared(out):
        _check_same(read_manifest(out).source, plan, out)
        return read_manifest(out)
    _start(out, plan, tokenizer)
    TOKENIZERS[out] = tokenizer  # workers that are forked need not load it
    try:
        done = _make_all(opened, out, config, engine, processes, listener)
        manifest = _manifest(plan, tokenizer, *done)
        _check_labels(manifest, config)
    except ValueError:
        (out / FAILED).touch()
        raise
    finally:
        del TOKENIZERS[out]
    write_manifest(out, manifest)
    (out / PLAN).unlink()
    for said in (LABELS_ARE_CATEGORIES,) if manifest.labels_are_categories else ():
        logger.warning("%s %s", out, said)
    for said in slips_in(out, manifest):
        logger.warning("%s", said)
    return manifest


def _make_all(
    source: Source, out: Path, config: PrepareConfig, engine: engines.Engine, processes: int, listener: Listener
) -> tuple[list[Finished], BadRows]:
    """What became of every share, in any order, and of all rows."""
    work = partial(make_shards, out, _held_out(source, config), config.label_of)
    bad, done = _bad_rows(config), list[Finished]()
    for finished in engines.run(engine, work, _shares(source, config), processes):
        done.append(finished)
        bad.add(finished.bad)
        for shard in finished.shards:
            listener(shard)
    return done, bad


def _has_tests(name: str, source: Source, config: PrepareConfig) -> bool:
    return TEST in source.splits


def _has_own_fields(name: str, source: Source, config: PrepareConfig) -> bool:
    return kind_of(name) not in ("files", "hf")


IDLE: tuple[tuple[str, Callable[[str, Source, PrepareConfig], bool], str], ...] = (
    ("test_share", _has_tests, "the source has test documents of its own"),
    ("test_per_category", _has_tests, "the source has test documents of its own"),
    ("test_share", lambda name, source, config: config.test_per_category > 0, "--test-per-category says how many"),
    *((f"source.fields.{name}", _has_own_fields, "this source names them itself") for name in vars(Fields())),
)
"""Options, when they change nothing, and why."""


def _check_options(name: str, source: Source, config: PrepareConfig) -> None:
    """Refuse an option that changes nothing for this source."""
    check_source_options(name, config.source)
    for option, when, why in IDLE:
        value, default = (reduce(getattr, option.split("."), of) for of in (config, PrepareConfig()))
        if value != default and when(name, source, config):
            raise ValueError(f"--{option.replace('_', '-')} {value} would change nothing, as {why}; leave it out")


def _check_labels(manifest: Manifest, config: PrepareConfig) -> None:
    """Refuse categories of --label that no document has, and a field of labels in which none stands."""
    categories = sorted({category for shard in manifest.shards for category in shard.categories})
    for category in config.label_of:
        if category not in categories:
            raise ValueError(f"--label names the category {category!r}; {nearest(category, categories)}")
    field_of_labels, labels = config.source.fields.label, {label for shard in manifest.shards for label in shard.labels}
    if field_of_labels not in ("", Fields().label) and not config.labels and labels <= {UNLABELED}:
        raise ValueError(
            f"no row has a label in {field_of_labels!r}; name the field that does: --source.fields.label NAME"
        )


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


def make_shards(out: Path, held_out: Callable[[Document], bool], label_of: Mapping[str, str], share: Share) -> Finished:
    """Parse, tokenise and write a share, unless a run that was interrupted has done so."""
    finished = read_finished(out, share.name)
    if finished is None:
        bad, documents = BadRows(), defaultdict[Split, list[Document]](list)
        for document in (_labelled_by(label_of, one) for one in bad.skip(share.pieces)):
            documents[TEST if held_out(document) else share.split].append(document)
        shards = (_make_shard(out, f"{split}-{share.number:05d}", split, some) for split, some in documents.items())
        finished = Finished(share=share.name, shards=tuple(shards), bad=bad)
        write_finished(out, finished)
    return finished


def _labelled_by(label_of: Mapping[str, str], document: Document) -> Document:
    """A document with the label of its category."""
    label = label_of.get(document.category, document.label)
    if document.label not in (label, UNLABELED):
        raise ValueError(
            f"{document.id} has the label {document.label!r}, and --label makes it {label!r}, as all of the category "
            f"{document.category!r}; leave that category out of --label, or the labels (--source.fields.label '')"
        )
    return replace(document, label=label)


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


def _plan(source: Source, config: PrepareConfig, tokenizer: str = "") -> dict[str, Any]:
    """Everything that decides the bytes of the shards, the digest of the tokenizer included."""
    options = {name: value for name, value in asdict(config).items() if name != "source"}
    if config.labels and not (Path(config.labels) / LABELS).exists():
        raise ValueError(f"{config.labels} holds no {LABELS}; write it with: excise label SOURCE --out {config.labels}")
    labels = sha256_of(Path(config.labels) / LABELS) if config.labels else ""
    described = {"tokenizer": tokenizer, "labels": labels, "fields": asdict(config.source.fields)}
    if config.tokenizer.startswith("train:"):
        described["trained"] = config.tokenizer
    held_out = TEST not in source.splits
    plan: dict[str, Any] = json.loads(
        json.dumps({**source.description, "held_out": held_out, "options": options | described})
    )
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


def _forget_failure(out: Path, plan: dict[str, Any]) -> None:
    """Clear away an attempt that ended before any shard was whole, or by an error that something else is to mend."""
    if not (out / PLAN).exists() or is_prepared(out):
        return
    there = read_object(out / PLAN)
    goes_on = not (out / FAILED).exists() or _wanted(there) == _wanted(plan)
    finished = (read_finished(out, file.name.removesuffix(FINISHED)) for file in out.glob("*" + FINISHED))
    if goes_on and any(share.shards for share in finished if share):
        return
    for file in out.iterdir():
        if OURS.fullmatch(file.name):
            file.unlink()


def _wanted(plan: dict[str, Any]) -> dict[str, Any]:
    """What a plan says without what decides no byte, and without a tokenizer that may be yet to train."""
    return plan | {"options": {**plan["options"], "bad_rows": 0, "tokenizer": ""}}


def _start(out: Path, plan: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Say what is going to stand in the folder, or check that it is the same as before an interruption."""
    file = out / PLAN
    if file.exists():
        _check_goes_on(json.loads(file.read_text(encoding="utf-8")), plan, out)
    elif out.exists() and any(path.suffix != ".part" for path in out.iterdir()):
        raise ValueError(f"{out} is not empty and holds no prepared data; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    (out / FAILED).unlink(missing_ok=True)
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
        if why := why_no_label(document.label):
            raise ValueError(f"{config.labels} gives {row.id} the label {document.label!r}: {why}")
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
