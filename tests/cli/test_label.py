"""excise label: one command from texts to labels, a picture and a report."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest

from excise.cli.label import main
from excise.data.labelling import LABELS, PICTURE, REPORT
from excise.report.classifier_plots import label_figure
from tests.data.test_classifier import own_scores, write_articles


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return str(write_articles(folder / "source.jsonl", 200, 1)), str(write_articles(folder / "examples.jsonl", 300, 2))


def run(texts, out, *options):
    source, examples = texts
    args = [source, "--out", str(out), "--domain", "biology", "--examples", examples, "--processes", "1", *options]
    return main(args)


def test_it_writes_labels_picture_and_report_and_says_where(texts, tmp_path, capsys):
    assert run(texts, tmp_path, "--recall", "0.95", "--retain-share", "0.2") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([LABELS, PICTURE, REPORT])
    printed = capsys.readouterr().out
    assert all(str(tmp_path / name) in printed for name in (LABELS, PICTURE, REPORT))
    assert "recall on out-of-fold examples" in printed
    report = json.loads((tmp_path / REPORT).read_text())
    assert report["config"]["recall"] == 0.95
    assert report["documents"]["expected"]["recall"] == pytest.approx(0.95, abs=0.02)
    assert report["documents"]["expected"]["retain_share"] == pytest.approx(0.2, abs=0.02)


def test_the_same_command_writes_the_same_bytes_and_the_picture_shows_what_the_report_says(texts, tmp_path):
    for name in ("one", "two"):
        assert run(texts, tmp_path / name, "--per", "sentence") == 0
    for name in (LABELS, PICTURE, REPORT):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    report = json.loads((tmp_path / "one" / REPORT).read_text())
    figure = label_figure(report)
    assert len(figure.axes) == 6
    roc, rates = (report["documents"]["held_out"][key] for key in ("roc", "rates"))
    lines = {str(line.get_label()).partition(":")[0]: line.get_xydata().tolist() for line in figure.axes[0].lines}
    curve = zip(roc["false_positive_rate"], roc["recall"], strict=True)
    assert lines[f"ROC, area {roc['auc']:.3f}"] == [list(point) for point in curve]
    assert lines["forget from here on"] == [[rates["false_positive_rate"], rates["recall"]]]
    assert_texts_stay_inside(figure)


@pytest.mark.parametrize("reach", [0.1, 0.3, 0.5, 0.7, 1.0])
def test_ticks_of_scores_leave_room_between_them(texts, tmp_path, reach):
    assert run(texts, tmp_path) == 0
    report = json.loads((tmp_path / REPORT).read_text())
    split = report["documents"]
    n = len(split["counts"])
    counts = [int(abs(i - n // 2) <= round(reach * (n // 2 - 1))) for i in range(n)]
    held_out = split["held_out"] | {"domain_counts": counts, "other_counts": counts}
    figure = label_figure(report | {"documents": split | {"counts": counts, "held_out": held_out}})
    figure.draw_without_rendering()
    extents = [tick.get_window_extent() for tick in figure.axes[2].get_xticklabels()]
    assert 3 <= len(extents) <= 7
    for left, right in pairwise(extents):
        assert right.x0 - left.x1 > 0.5 * right.height


def assert_texts_stay_inside(figure):
    figure.draw_without_rendering()
    labels = [label for panel in figure.axes for label in (panel.xaxis.label, panel.yaxis.label, *panel.texts)]
    for artist in (*labels, *figure.texts):
        extent = artist.get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1
        assert 0 <= extent.y0 < extent.y1 <= figure.bbox.y1


def test_scores_without_truth_need_no_more_than_thresholds(tmp_path):
    source, _, _ = own_scores(tmp_path / "scored.jsonl", known=0)
    thresholds = ["--forget-threshold", "0.8", "--retain-threshold", "0.2"]
    assert main([source, "--out", str(tmp_path / "out"), "--domain", "biology", "--score-field", "p", *thresholds]) == 0
    report = json.loads((tmp_path / "out" / REPORT).read_text())
    assert report["documents"]["held_out"] is None
    assert len(label_figure(report).axes) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--recal", "0.9"], "did you mean --recall"),
        (["--recall", "2"], "recall=2 must be above 0 and at most 1"),
        (["--categories", "biolgy"], "did you mean 'biology'"),
    ],
)
def test_bad_input_is_one_sentence(options, message, texts, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(texts, tmp_path, *options)


def test_ray_writes_the_same_labels(texts, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    assert run(texts, tmp_path / "local", "--per", "sentence") == 0
    source, examples = texts
    options = ["--domain", "biology", "--examples", examples, "--per", "sentence", "--engine", "ray"]
    command = [sys.executable, "-m", "excise.cli.main", "label", source, "--out", str(tmp_path / "ray"), *options]
    subprocess.run(command, check=True, timeout=300)
    assert (tmp_path / "ray" / LABELS).read_bytes() == (tmp_path / "local" / LABELS).read_bytes()
