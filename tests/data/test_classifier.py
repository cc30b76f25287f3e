"""Labels from a classifier: scores that mean what they say, thresholds that do what was asked, files that are whole."""

import gzip
import json
import os
import time
import tracemalloc
from collections import Counter
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from excise.data.classifier import calibrate, draw, sentence_words, sentences, train
from excise.data.documents import Fields, read_file
from excise.data.labelling import LABELS, REPORT, LabelConfig, label_corpus, read_examples
from excise.data.thresholds import (
    Rates,
    Target,
    Thresholds,
    choose_thresholds,
    expected_domain,
    rates,
    reliability,
    roc,
)

SHARED = Path(os.environ.get("EXCISE_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
SHARE = Target("share", 0.25)
VOCABULARY = {
    "biology": "cell leaf gene wing enzyme root larva membrane",
    "history": "king war treaty crown siege empire duke reign",
    "travel": "road hotel coast train harbour bridge ticket valley",
    "": "the a of and in it was with many some old large first found near water year name",
}
OWN_WORDS = {category: words.split() for category, words in VOCABULARY.items() if category}
COMMON_WORDS = VOCABULARY[""].split()


def article(category: str, random: np.random.Generator, n_sentences: int = 6) -> str:
    """Sentences of common words, some of which belong to a category, not always its own."""
    lines = []
    for _ in range(n_sentences):
        subject = category if random.random() < 0.75 else str(random.choice(list(OWN_WORDS)))
        words = [*random.choice(COMMON_WORDS, 8), *random.choice(OWN_WORDS[subject], 1)]
        lines.append(" ".join(random.permutation(words)).capitalize() + ".")
    return " ".join(lines)


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_articles(path: Path, n: int, seed: int, **options) -> Path:
    random = np.random.default_rng(seed)
    categories = random.choice(list(OWN_WORDS), n, p=[0.2, 0.4, 0.4])
    rows = [{"text": article(category, random, **options), "category": str(category)} for category in categories]
    return write_rows(path, rows)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("articles")
    return {
        "examples": str(write_articles(folder / "examples.jsonl", 400, 1)),
        "source": str(write_articles(folder / "source.jsonl", 300, 2)),
        "test": str(write_articles(folder / "more.jsonl", 300, 3)),
    }


def config_of(files, **changes) -> LabelConfig:
    return LabelConfig(domain="biology", **{"examples": files["examples"]} | changes)


def lines_of(folder: Path) -> list[dict]:
    with gzip.open(folder / LABELS, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def synthetic(n_domain: int = 1000, n_others: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that all differ, higher for the domain, and the truth."""
    random = np.random.default_rng(seed)
    truth = np.arange(n_domain + n_others) < n_domain
    margins = random.normal(np.where(truth, 1.5, -1.5))
    ranks = margins.argsort().argsort()
    return np.round((ranks + 1) / (len(ranks) + 1), 6), truth.astype(float)


def trained_on(config: LabelConfig):
    return train(*read_examples(config), per_sentence=config.per == "sentence", seed=config.seed)


@pytest.mark.parametrize("recall", [0.5, 0.9, 0.999])
def test_the_thresholds_give_exactly_the_recall_and_the_retain_share_that_were_asked_for(recall):
    scores, truth = synthetic()
    found = rates(scores, truth, choose_thresholds(scores, truth, Target("recall", recall), Target("share", 0.02)))
    assert (found.recall, found.retain_share) == pytest.approx((recall, 0.02), abs=1e-12)


@pytest.mark.parametrize("precision", [0.6, 0.8, 0.95])
def test_a_precision_is_reached_with_as_many_documents_as_possible(precision):
    scores, truth = synthetic()
    targets = Target("precision", precision), Target("precision", 0.99)
    thresholds = choose_thresholds(scores, truth, *targets)
    assert truth[scores >= thresholds.forget].mean() >= precision
    assert all(truth[scores >= lower].mean() < precision for lower in scores[scores < thresholds.forget])
    assert (1 - truth[scores <= thresholds.retain]).mean() >= 0.99
    assert all(
        (1 - truth[scores <= higher]).mean() < 0.99
        for higher in scores[(scores > thresholds.retain) & (scores < thresholds.forget)]
    )


def test_rates_are_those_of_counting_labels():
    scores, truth = synthetic(200, 800)
    thresholds = Thresholds(0.7, 0.3)
    labels = np.array([thresholds.label(score, "biology") for score in scores])
    forget, retain, others = labels == "biology", labels == "retain", truth == 0
    assert rates(scores, truth, thresholds) == Rates(
        n_domain=200,
        n_others=800,
        recall=forget[~others].mean(),
        precision=truth[forget].mean(),
        false_positive_rate=forget[others].mean(),
        retain_share=retain[others].mean(),
        retain_precision=others[retain].mean(),
        retain_false_rate=retain[~others].mean(),
    )


@pytest.mark.parametrize(
    ("scores", "truth", "forget", "retain", "message"),
    [
        ([0.9, 0.9, 0.1], [1, 0, 0], Target("precision", 0.8), SHARE, "a precision of 0.8 cannot be reached; the highest is 0.5"),
        ([0.5, 0.5, 0.5], [1, 0, 0], Target("recall", 0.9), SHARE, "cannot be reached short of giving all documents"),
        ([0.9, *[0.1] * 8], [1, *[0] * 8], Target("recall", 0.9), SHARE, "the nearest that can is 1.000"),
        ([0.9, 0.8, 0.8, 0.7, 0.5], [1, 0, 0, 1, 0], Target("recall", 0.9), Target("share", 1.0), "the nearest that can is 0.333"),
        ([0.9, 0.5, 0.2, 0.1], [1, 0, 0, 1], Target("recall", 0.5), Target("precision", 0.9), "retain precision of 0.9"),
        ([0.9, 0.5, 0.5], [1, 0, 0], Target("threshold", 0.4), SHARE, "no score is below the forget threshold of 0.4"),
    ],
)  # fmt: skip
def test_a_target_out_of_reach_is_named(scores, truth, forget, retain, message):
    with pytest.raises(ValueError, match=message):
        choose_thresholds(np.array(scores), np.array(truth, float), forget, retain)


def test_the_area_under_the_curve_is_that_of_counting_pairs():
    random = np.random.default_rng(0)
    truth = (random.random(300) < 0.3).astype(float)
    scores = np.round(random.random(300) * 0.6 + truth * 0.3, 2)  # with ties
    pairs = [(own > other) + 0.5 * (own == other) for own in scores[truth == 1] for other in scores[truth == 0]]
    curve = roc(scores, truth)
    assert curve.auc == pytest.approx(np.mean(pairs), abs=1e-12)
    for threshold, false, recall in list(zip(curve.threshold, curve.false_positive_rate, curve.recall, strict=True))[
        1:
    ]:
        chosen = scores >= threshold
        assert (recall, false) == pytest.approx((chosen[truth == 1].mean(), chosen[truth == 0].mean()), abs=1e-12)


def test_a_score_that_is_the_probability_lies_on_the_diagonal():
    random = np.random.default_rng(0)
    scores = random.random(200_000)
    bins = reliability(scores, (random.random(200_000) < scores).astype(float))
    assert len(bins) == 10
    assert sum(one.n for one in bins) == 200_000
    for one in bins:
        assert one.share == pytest.approx(one.mean_score, abs=0.015)
        assert one.low < one.share < one.high


def test_margins_become_the_probabilities_they_were_drawn_from():
    random = np.random.default_rng(0)
    margins = random.normal(size=20_000)
    truth = random.random(20_000) < 1 / (1 + np.exp(1 - 3 * margins))
    found, _ = calibrate(margins, truth.astype(float))
    assert (found.slope, found.intercept) == pytest.approx((3, -1), rel=0.06)


def test_classes_that_are_told_apart_fully_get_probabilities_that_are_not_certain():
    truth = (np.arange(100) < 30).astype(float)
    calibration, _ = calibrate(truth * 2 - 1, truth)
    low, high = calibration(np.array([-1.0, 1.0]))
    assert 0.00001 < low < 0.02
    assert 0.98 < high < 0.99999


@pytest.mark.parametrize("share", [0.02, 0.2, 0.6])
def test_the_expected_recall_holds_where_the_domain_is_rarer_or_more_common_than_among_the_examples(share):
    random = np.random.default_rng(1)
    truth = (random.random(100_000) < share).astype(float)
    scores = 1 / (1 + np.exp(-4 * random.normal(4 * truth - 2)))  # the probability where both are as common
    expected = expected_domain(scores, 0.5)
    assert expected.sum() == pytest.approx(truth.sum(), rel=0.02)
    for recall in (0.8, 0.9, 0.95):
        thresholds = choose_thresholds(scores, expected, Target("recall", recall), SHARE)
        assert rates(scores, truth, thresholds).recall == pytest.approx(recall, abs=0.02)


@pytest.mark.parametrize(
    "parts",
    [
        ["One ends. ", "Two ends! ", "Is it three? ", "Yes."],
        ["Dr. Smith met J. R. Brown at St. Paul's. ", "They spoke, e.g. of Mr. Hill."],
        ["It cost 3.5 million. ", "“Really?” he asked."],
        ["A title\n\n", "A line that is\nwrapped goes on. ", "Next line\n", "Last one.\n"],
        ["Sí. ", "¿Qué dices? ", "¡Nada!"],
        ["猫がいる。", "犬もいる！", "はい"],
        ["  \n Leading space. ", "Then..... ", "(Brackets.) ", "End"],
        ["No end at all"],
    ],
)
def test_sentences_end_where_a_reader_would_end_them(parts):
    text = "".join(parts)
    assert [text[start:end] for start, end in sentences(text)] == parts


def test_sentences_cover_any_text():
    random = np.random.default_rng(0)
    for _ in range(200):
        text = "x" + "".join(random.choice(list('aB.!?… \n"”(1。'), 40))
        spans = sentences(text)
        assert [0, *(end for _, end in spans)] == [*(start for start, _ in spans), len(text)]
        assert all(start < end for start, end in spans)


def test_a_long_text_without_a_sentence_takes_no_time():
    start = time.process_time()
    for filler in (".", " ", "\n", "。", '"', "a. "):
        text = "x" + filler * 200_000
        assert sentences(text)[-1][1] == len(text)
    assert time.process_time() - start < 10, "a search that looks back takes hours here"


def test_a_sentence_is_seen_with_its_two_neighbours():
    from sklearn.feature_extraction.text import CountVectorizer

    texts = ["Ant bee. Cat dog. Elk fox. Gnu hen.", "Ibis jay. Kiwi lark.", "Mole."]
    words = CountVectorizer().fit(texts)
    windows, owners = sentence_words(words, texts)
    assert owners.tolist() == [0, 0, 0, 0, 1, 1, 2]
    expected = ["ant bee cat dog", "ant bee cat dog elk fox", "cat dog elk fox gnu hen", "elk fox gnu hen"]
    expected += ["ibis jay kiwi lark"] * 2 + ["mole"]
    assert abs(windows - words.transform(expected)).sum() == 0


def test_every_category_has_its_share_of_the_draw():
    groups = ["a"] * 500 + ["b"] * 300 + ["c"] * 200
    drawn, further = draw(groups, 100, 50, seed=3)
    for rows, n in ((drawn, 100), (further, 50)):
        assert len(set(rows.tolist())) == n
        counts = [sum(groups[i] == group for i in rows) for group in "abc"]
        assert np.abs(np.array(counts) - n * np.array([0.5, 0.3, 0.2])).max() <= 1
    assert not set(drawn.tolist()) & set(further.tolist())
    assert (drawn == draw(groups, 100, 50, seed=3)[0]).all()
    assert (drawn != draw(groups, 100, 50, seed=4)[0]).any()


def test_two_files_of_examples_do_what_one_with_categories_does(files, tmp_path):
    rows = [json.loads(line) for line in Path(files["examples"]).read_text().splitlines()]
    for name, is_domain in (("own", True), ("other", False)):
        texts = [{"text": row["text"]} for row in rows if (row["category"] == "biology") == is_domain]
        write_rows(tmp_path / f"{name}.jsonl", texts)
    two = {"domain_examples": str(tmp_path / "own.jsonl"), "other_examples": str(tmp_path / "other.jsonl")}
    apart, _ = read_examples(config_of(files, examples="", **two))
    together, _ = read_examples(config_of(files))
    assert sorted(map(astuple, apart)) == sorted(map(astuple, together))


def test_labels_stand_in_the_order_of_the_source_and_follow_from_the_scores(files, tmp_path):
    config = config_of(files, n_examples=250, n_validation=150, test=files["test"])
    report = label_corpus(files["source"], tmp_path / "labels", config)
    documents = list(read_file(Path(files["source"]), Fields()))
    lines = lines_of(tmp_path / "labels")
    assert [line["id"] for line in lines] == [document.id for document in documents]
    split = report.documents
    assert all(line["label"] == split.thresholds.label(line["score"], "biology") for line in lines)
    assert all(line.keys() == {"id", "score", "label"} for line in lines)
    assert Counter(line["label"] for line in lines) == split.labels
    labelled = [
        line["label"] == "biology"
        for line, document in zip(lines, documents, strict=True)
        if document.category == "biology"
    ]
    assert np.mean(labelled) == pytest.approx(0.9, abs=0.06)
    assert split.held_out.on == "more.jsonl"
    assert split.held_out.roc.auc > 0.95
    assert split.held_out.rates.n_domain + split.held_out.rates.n_others == 300


def test_spans_are_the_sentences_and_leave_the_documents_label_alone(files, tmp_path):
    plain = label_corpus(files["source"], tmp_path / "plain", config_of(files))
    report = label_corpus(files["source"], tmp_path / "spans", config_of(files, per="sentence"))
    assert report.documents == plain.documents
    assert report.sentences.held_out.roc.auc > 0.7
    documents = read_file(Path(files["source"]), Fields())
    labels = Counter()
    for document, line, other in zip(
        documents, lines_of(tmp_path / "spans"), lines_of(tmp_path / "plain"), strict=True
    ):
        assert [(start, end) for start, end, _ in line["spans"]] == sentences(document.text)
        own = [report.sentences.thresholds.label(score, "biology") for score in line["span_scores"]]
        assert [label for _, _, label in line["spans"]] == own
        labels.update(own)
        assert {key: line[key] for key in other} == other
    assert labels == report.sentences.labels
    assert set(labels) == {"biology", "retain", "unlabeled"}


def test_the_same_seed_gives_the_same_bytes_in_one_process_and_in_two(files, tmp_path):
    config = config_of(files, n_examples=200, per="sentence", seed=5)
    reports = [label_corpus(files["source"], tmp_path / str(n), config, processes=n) for n in (1, 2)]
    assert (tmp_path / "1" / LABELS).read_bytes() == (tmp_path / "2" / LABELS).read_bytes()
    assert reports[0] == reports[1]


def test_memory_does_not_grow_with_the_source(files, tmp_path):
    peaks = []
    for n in (128, 896):
        source = write_articles(tmp_path / f"{n}.jsonl", n, 4, n_sentences=20)
        tracemalloc.start()
        label_corpus(str(source), tmp_path / str(n), config_of(files, n_examples=100, n_validation=100))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 300_000


def test_an_interruption_leaves_nothing_that_looks_finished(files, tmp_path):
    label_corpus(files["source"], tmp_path, config_of(files))
    (tmp_path / REPORT).write_text("{}")

    def stop(n_documents: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        label_corpus(files["source"], tmp_path, config_of(files), listener=stop)
    assert list(tmp_path.iterdir()) == []


def own_scores(path: Path, n: int = 400, known: int = 400) -> tuple[str, np.ndarray, np.ndarray]:
    scores, truth = synthetic(n // 4, n - n // 4)
    order = np.random.default_rng(0).permutation(n)
    scores, truth = scores[order], truth[order]
    rows = [
        {
            "text": "A text.",
            "p": score,
            "category": ("biology" if own == 1 else "history") if i < known else "unlabeled",
        }
        for i, (score, own) in enumerate(zip(scores.tolist(), truth.tolist(), strict=True))
    ]
    return str(write_rows(path, rows)), scores, truth


@pytest.mark.parametrize(("n", "known", "tolerance"), [(400, 400, 1e-12), (4000, 2000, 0.03)])
def test_own_scores_meet_a_target_as_well_as_the_truth_is_known(n, known, tolerance, tmp_path):
    source, scores, truth = own_scores(tmp_path / "scored.jsonl", n, known)
    report = label_corpus(source, tmp_path / "labels", LabelConfig(domain="biology", score_field="p", recall=0.9))
    lines = lines_of(tmp_path / "labels")
    assert [line["score"] for line in lines] == scores.tolist()
    labelled = np.array([line["label"] == "biology" for line in lines])
    assert labelled[truth == 1].mean() == pytest.approx(0.9, abs=tolerance)
    assert report.documents.held_out.rates.retain_share == pytest.approx(0.25, abs=tolerance)


def test_own_scores_without_any_truth_are_cut_by_thresholds(tmp_path):
    source, scores, _ = own_scores(tmp_path / "scored.jsonl", known=0)
    thresholds = {"forget_threshold": 0.8, "retain_threshold": 0.25}
    report = label_corpus(source, tmp_path / "labels", LabelConfig(domain="biology", score_field="p", **thresholds))
    expected = ["biology" if score >= 0.8 else "retain" if score <= 0.25 else "unlabeled" for score in scores]
    assert [line["label"] for line in lines_of(tmp_path / "labels")] == expected
    assert report.documents.held_out is None
    assert report.documents.expected is None
    with pytest.raises(ValueError, match="give --forget-threshold and --retain-threshold"):
        label_corpus(source, tmp_path / "labels", LabelConfig(domain="biology", score_field="p"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"p": 1.5}, "scored.jsonl:1 has the score 1.5 in 'p'; scores go from 0 to 1"),
        ({"p": float("nan")}, "has the score nan"),
        ({"p": "high"}, "scored.jsonl:1 has no score in 'p'"),
        ({}, "scored.jsonl:1 has no score in 'p'"),
    ],
)
def test_a_score_that_is_none_is_named(row, message, tmp_path):
    source = write_rows(tmp_path / "scored.jsonl", [{"text": "A text.", "category": "x"} | row])
    with pytest.raises(ValueError, match=message):
        label_corpus(str(source), tmp_path / "labels", LabelConfig(domain="biology", score_field="p"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"categories": ("biolgy",)}, "no example has the category 'biolgy'; did you mean 'biology'"),
        ({"n_examples": 5000}, "cannot be drawn from 400 examples"),
        ({"n_validation": -1}, "cannot be below 0"),
        ({"n_examples": 12}, "there are only . examples of the domain"),
        ({"categories": tuple(OWN_WORDS)}, "there are only 0 examples of anything else"),
        ({"examples": "nowhere.jsonl"}, "there is no file or folder nowhere.jsonl"),
        ({"recall": 0.9, "precision": 0.9}, "recall and precision exclude each other"),
        ({"recall": 1.2}, "recall=1.2 must be above 0 and at most 1"),
        ({"forget_threshold": 0.2, "retain_threshold": 0.3}, "must be below forget_threshold"),
        ({"per": "sentence", "retain_threshold": 0.6}, "must be below forget_threshold=0.5"),
        ({"examples": ""}, "give either --examples"),
        ({"examples": "", "domain_examples": "a.jsonl"}, "give either --examples"),
        ({"examples": "", "score_field": "p", "per": "sentence"}, "nothing is trained"),
    ],
)
def test_options_and_examples_that_will_not_do_are_named(changes, message, files):
    with pytest.raises(ValueError, match=message):
        read_examples(config_of(files, **changes))


def test_an_empty_source_and_a_folder_inside_the_source_are_refused(files, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match="there are no documents in"):
        label_corpus(str(tmp_path / "empty.jsonl"), tmp_path / "labels", config_of(files, n_examples=60))
    with pytest.raises(ValueError, match="which is inside the source"):
        label_corpus(str(tmp_path), tmp_path / "labels", config_of(files))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here; set EXCISE_SHARED_DATA")
def test_a_biology_classifier_from_500_articles_ranks_and_hits_its_recall():
    topics = SHARED / "topics_schools_wikipedia"
    trained = trained_on(LabelConfig(domain="biology", examples=str(topics / "train.jsonl.zst"), n_examples=500))
    documents = list(read_file(topics / "test.jsonl.zst", Fields()))
    scores = trained.classifier.score([document.text for document in documents])
    truth = np.array([float(document.category == "biology") for document in documents])
    assert len(documents) == 370
    assert roc(scores, truth).auc >= 0.98
    expected = expected_domain(scores, trained.prior)
    for recall in (0.9, 0.95):
        found = rates(scores, truth, choose_thresholds(scores, expected, Target("recall", recall), SHARE))
        assert found.recall == pytest.approx(recall, abs=0.03)
        assert found.retain_share == pytest.approx(0.25, abs=0.03)
        assert found.retain_precision == 1
