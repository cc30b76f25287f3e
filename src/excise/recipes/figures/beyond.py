"""Labels and domains beyond the paper: labels of tokens in documents that mix them, and two domains in one model.

No corpus at hand has such documents, so some are made: half of the documents of each language are cut in the middle and
joined with the other half of one in the other language. A document that holds any Spanish is Spanish where documents have
one label, as in the paper; a token has the language that it is in.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise.config import override
from excise.data.dataset import DataConfig
from excise.data.documents import BadRows
from excise.data.noise import OTHER, simulate_labels
from excise.data.shards import TOKENIZER, Manifest, is_prepared, load_prepared, write_manifest, write_shard
from excise.data.sources import EMBEDDED, TEST, TRAIN, SourceConfig, open_source
from excise.data.tokenised import Column, Tokenised, tokenise
from excise.data.tokens import Tokenizer, story_tokenizer
from excise.evals.figure import NOT_IN_PAPER, Bars, Estimate, Heat, PaperClaim, Scale
from excise.labels import FIRST_DOMAIN_ID, RETAIN, UNLABELED_ID, label_names
from excise.recipes.figures import topics_runs
from excise.recipes.figures.bilingual_runs import DOMAIN, setup, sgtm, standard
from excise.recipes.figures.dials import (
    BORROWED,
    SECTION,
    SHARE,
    end_plot,
    end_point,
    higher,
    lower,
    planned,
)
from excise.recipes.figures.estimates import LOSS, by_seed, claim_all_above, claim_all_below, loss, over_seeds
from excise.recipes.figures.planned import Drawing, Figure, FinishedRun, Group, PlannedRun, Sources
from excise.recipes.sharing import taken
from excise.train.run import RunConfig

# --- Documents that mix labels ---------------------------------------------------------------------------------------

MIXED = "-mixed"
"""The end of the name of a source that is made from the one without it."""


def origin_of(run: RunConfig) -> RunConfig:
    """The same run on the documents that mixed ones are made from, which are as long."""
    return override(run, {"data.source": run.data.source.removesuffix(MIXED)})


class MixedSources:
    """Sources of mixed documents that some runs ask for, each in a folder of its own, made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wanted: dict[str, DataConfig] = {}

    def locate(self, run: RunConfig) -> RunConfig:
        """The same run, its data in the folder where they are to lie."""
        if not run.data.source.endswith(MIXED):
            return run
        data, name = run.data, Path(run.data.source).name
        decisive = f"{data.n_stories} {data.n_test_stories} {data.retain_share} {data.seed}"
        place = str(self.folder / hashlib.sha256(decisive.encode()).hexdigest()[:8] / name)
        self.wanted[place] = run.data
        return override(run, {"data.source": place})

    def make(self, source: str) -> str:
        """Write a source of mixed documents unless it is there; the folder that must be there for that."""
        data = self.wanted.get(source)
        if data is None or is_prepared(Path(source)):
            return source
        origin = data.source.removesuffix(MIXED)
        if origin not in EMBEDDED and not is_prepared(Path(origin)):
            return origin
        with taken(Path(f"{source}.lock"), wait=True):
            if not is_prepared(Path(source)):
                write_mixed(*_splits(origin, data), Path(source), data)
        return source


def _splits(origin: str, data: DataConfig) -> tuple[Mapping[str, Tokenised], Tokenizer]:
    if origin not in EMBEDDED:
        prepared = load_prepared(Path(origin))
        return prepared.splits, prepared.tokenizer
    sizes = SourceConfig(n_stories=data.n_stories, n_test_stories=data.n_test_stories, seed=data.seed)
    tokenizer, splits = story_tokenizer(), open_source(origin, sizes).splits
    return {split: tokenise(list(BadRows().skip(read())), tokenizer) for split, read in splits.items()}, tokenizer


def write_mixed(splits: Mapping[str, Tokenised], tokenizer: Tokenizer, to: Path, data: DataConfig) -> None:
    """Prepared data whose training documents mix languages; those for the test stay as they are."""
    named = [category for _, _, category in (entry.partition("=") for entry in data.forget)] or [DOMAIN]
    made = {TRAIN: mix(splits[TRAIN], named[0], data), TEST: joined(_texts(splits[TEST]), splits[TEST])}
    to.mkdir(parents=True, exist_ok=True)
    tokenizer.save(to / TOKENIZER)
    shards = tuple(write_shard(to, f"{split}-00000", split, of, text_bytes=0) for split, of in made.items())
    manifest = Manifest(
        source={"source": to.name, "seed": data.seed},
        tokenizer_sha256=tokenizer.sha256,
        vocabulary_size=tokenizer.vocabulary_size,
        n_rows=sum(shard.n_documents for shard in shards),
        n_bad_rows=0,
        first_bad_rows=(),
        shards=shards,
    )
    write_manifest(to, manifest)


def _texts(data: Tokenised) -> list[NDArray[Any]]:
    starts = np.cumsum(data.lengths) - data.lengths
    return [np.asarray(data.tokens[start : start + n]) for start, n in zip(starts, data.lengths, strict=True)]


def joined(texts: Sequence[NDArray[Any]], like: Tokenised) -> Tokenised:
    """Texts end to end, with the categories and labels of others."""
    lengths = np.array([len(text) for text in texts], np.int64)
    return Tokenised(np.concatenate(texts), lengths, like.categories, like.labels)


def mix(data: Tokenised, forget: str, config: DataConfig) -> Tokenised:
    """The same tokens with every second pair of a retain and a forget document cut in the middle and joined crosswise.

    The simulated classifier finds the same documents as in a run with this configuration and document labels.
    """
    domain, categories = data.categories.names.index(forget), data.categories.index.copy()
    is_forget = categories == domain
    texts, spanish = _texts(data), [np.full(n, own) for n, own in zip(data.lengths, is_forget, strict=True)]
    pairs = list(zip(np.flatnonzero(~is_forget), np.flatnonzero(is_forget), strict=False))
    for one, other in pairs[1::2]:
        for values in (texts, spanish):
            values[one], values[other] = _crossed(values[one], values[other])
        categories[one] = domain
    shares = {name: getattr(config, name) for name in ("retain_share", "adjacent_retain_share")}
    truth = np.where(categories == domain, 0, OTHER)
    labels = simulate_labels(truth, [DOMAIN], seed=config.seed, undiscovered_share=SHARE, **shares)
    mixed, names = joined(texts, data), label_names([DOMAIN])
    of_tokens = np.repeat(labels, mixed.lengths)
    of_tokens[(of_tokens == FIRST_DOMAIN_ID) & ~np.concatenate(spanish)] = UNLABELED_ID
    return replace(
        mixed,
        categories=Column(data.categories.names, categories),
        labels=Column(names, labels.astype(np.uint8)),
        token_labels=Column(names, of_tokens.astype(np.uint8)),
    )


def _crossed(one: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The first half of each, followed by the second half of the other."""
    i, j = len(one) // 2, len(other) // 2
    return np.concatenate([one[:i], other[j:]]), np.concatenate([other[:j], one[i:]])


# --- Token labels ----------------------------------------------------------------------------------------------------

LABELLED = {
    "sgtm": "SGTM, token labels",
    "sgtm_documents": "SGTM, document labels",
    "token_filter": "Token filter",
    "data_filter": "Document filter",
    "no_filter": "No filter",
}


def token_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base = setup(scale, sources)
    mixed = override(base, {"data.source": base.data.source + MIXED})
    tokens = {"data.labels": "given", "data.undiscovered_share": SHARE}
    configs = {
        "sgtm": override(mixed, tokens),
        "sgtm_documents": sgtm(mixed, SHARE),
        "token_filter": override(standard(mixed, 1.0, scale), {**tokens, "routing.forget_weight": 0.0}),
        "data_filter": standard(mixed, SHARE, scale),
        "no_filter": standard(mixed, 1.0, scale),
    }
    return planned(configs, scale)


def draw_tokens(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    looks = {name: name for name in LABELLED} | {"sgtm_documents": BORROWED[0], "token_filter": BORROWED[1]}
    bars = Bars(
        "Spanish, before and after",
        "forget loss",
        ["before ablation", "ablated, calibrated"],
        {look: [loss(runs[name], DOMAIN, stage) for stage in ("before", "calibrated")] for name, look in looks.items()},
        {look: LABELLED[name] for name, look in looks.items()},
    )
    tokens, documents = runs["sgtm"], runs["sgtm_documents"]
    return Drawing(
        [end_plot([end_point(looks[name], label, runs[name]) for name, label in LABELLED.items()]), bars],
        [
            lower(
                "SGTM learns more English with token labels than with document labels",
                tokens,
                documents,
                RETAIN,
                "retain loss, token labels - document labels",
            ),
            higher(
                "SGTM forgets more than a filter of tokens, which leaves out the loss of the same tokens",
                tokens,
                runs["token_filter"],
                DOMAIN,
                "forget loss, SGTM - token filter",
            ),
            lower(
                "SGTM with token labels learns more English than the document filter, which loses the English of mixed "
                "documents",
                tokens,
                runs["data_filter"],
                RETAIN,
                "retain loss, SGTM - document filter",
            ),
            lower(
                "A filter of tokens learns more English than a filter of documents",
                runs["token_filter"],
                runs["data_filter"],
                RETAIN,
                "retain loss, token filter - document filter",
            ),
        ],
    )


# --- Two domains -----------------------------------------------------------------------------------------------------

DOMAINS = ("biology", "military")
METHODS = ("sgtm", "no_filter", "perfect_filter")
KEPT = 0.2
"""What the loss on a domain may rise by when the other's module is removed, as a share of its rise without its own."""


def two_domains(scale: Scale, sources: Sources) -> RunConfig:
    """SGTM with a module for each of two subjects, in the set-up of section 5."""
    base = topics_runs.setup(scale, sources, DOMAINS[0])
    subjects = [topics_runs.SUBJECTS[scale][domain] for domain in DOMAINS]
    removed = {category for of in subjects for category in of.forget}
    adjacent = {category for of in subjects for category in of.adjacent} - removed
    general = {category for of in subjects for category in of.general} - removed - adjacent
    forget = [f"{name}={category}" for name, of in zip(DOMAINS, subjects, strict=True) for category in of.forget]
    changes = {
        "data.forget": tuple(forget),
        "data.adjacent": tuple(sorted(adjacent)),
        "data.general": tuple(sorted(general)),
        "routing.domains": DOMAINS,
    }
    return override(base, changes)


def domain_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base = two_domains(scale, sources)
    no_filter = topics_runs.standard(base, "none")
    perfect = override(no_filter, {"data.filter": "perfect"})
    configs = dict(zip(METHODS, (base, no_filter, perfect), strict=True))
    return planned(configs, scale, measures=("losses", "cross_domain"))


def without(run: FinishedRun, *removed: str) -> Mapping[str, float]:
    """The losses with some modules removed, by set."""
    rows = run.results.measures["cross_domain"]["rows"]
    return next(row["losses"] for row in rows if set(row["removed"]) == set(removed))


def rise(run: FinishedRun, name: str, removed: str) -> float:
    """How much the loss on a set rises when a module is removed."""
    return without(run, removed)[name] - without(run)[name]


def draw_domains(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    routed = runs["sgtm"]
    sets = list(without(routed[0]))
    subsets = {"nothing": (), **{name: (name,) for name in DOMAINS}, "both": DOMAINS}
    rows = {f"SGTM, {name} removed": (routed, removed) for name, removed in subsets.items()}
    rows |= {"No filter": (runs["no_filter"], ()), "Perfect filter of both": (runs["perfect_filter"], ())}
    values = [
        [float(np.mean([without(run, *gone)[name] for run in of])) for name in sets] for of, gone in rows.values()
    ]
    looks = dict(zip(BORROWED, DOMAINS, strict=False))
    bars = {
        look: [by_seed(routed, partial(rise, name=name, removed=gone)) for name in sets] for look, gone in looks.items()
    }
    labels = {look: f"Without {gone}" for look, gone in looks.items()}
    return Drawing(
        [
            Heat("Loss before calibration", "model", "test set", list(rows), sets, values),
            Bars("Rise when a module is removed", "rise of the loss", sets, bars, labels),
        ],
        domain_claims(runs),
    )


def domain_claims(runs: Mapping[str, Group]) -> list[PaperClaim]:
    routed, pairs = runs["sgtm"], (DOMAINS, DOMAINS[::-1])

    def difference(of: tuple[str, str], less: tuple[str, str], share: float = 1.0) -> Estimate:
        """The rise of a set without a module, less a share of another such rise; each is (set, module)."""
        return by_seed(routed, lambda run: rise(run, *of) - share * rise(run, *less))

    def beyond_midpoint(name: str, stage: str) -> Estimate:
        losses = [[getattr(run.losses.sets[name], stage) for run in runs[key]] for key in METHODS]
        return over_seeds([mine - (a + b) / 2 for mine, a, b in zip(*losses, strict=True)])

    return [
        claim_all_below(
            "With nothing removed, the loss on each domain is nearer to no filter's than to the perfect filter's",
            NOT_IN_PAPER,
            [beyond_midpoint(name, "before") for name in DOMAINS],
            LOSS,
            "the larger of the two, loss before ablation - midpoint",
        ),
        claim_all_above(
            "Removing a module raises the loss on its own domain more than on the other",
            NOT_IN_PAPER,
            [difference((own, own), (other, own)) for own, other in pairs],
            LOSS,
            "the smaller difference of the two rises",
        ),
        claim_all_below(
            f"It costs the other domain less than {100 * KEPT:g} % of what removing that one's own module does",
            NOT_IN_PAPER,
            [difference((other, own), (other, other), KEPT) for own, other in pairs],
            LOSS,
            "the larger rise of the two, less what is allowed",
        ),
        claim_all_above(
            "With both modules removed, the loss on each domain is nearer to the perfect filter's than to no filter's",
            NOT_IN_PAPER,
            [beyond_midpoint(name, "calibrated") for name in DOMAINS],
            LOSS,
            "the smaller of the two, calibrated loss - midpoint",
        ),
    ]


FIGURES = (
    Figure(
        name="token-labels",
        title="Labels of tokens in documents that mix languages",
        section=SECTION,
        caption="Half of the documents are made of one half in English and one in Spanish; 5 % of all that hold Spanish "
        "are undiscovered. The token filter reads labelled tokens as context and has no loss on them, the document "
        "filter leaves out whole documents. All train one epoch on what is left to them.",
        runs=token_runs,
        draw=draw_tokens,
    ),
    Figure(
        name="two-domains",
        title="Biology and military removable from one model",
        section=SECTION,
        caption="SGTM with a module for each domain and perfect labels; any of them can be removed afterwards.",
        runs=domain_runs,
        draw=draw_domains,
    ),
)
