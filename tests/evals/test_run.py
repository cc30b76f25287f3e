"""What an evaluation of a run writes down: losses by set and category, what they are of, and which of them are kept."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from excise.data.dataset import load_data
from excise.data.loader import Loader
from excise.data.packing import IGNORED
from excise.evals.losses import STAGES, evaluate, stage_losses
from excise.evals.results import ForgetTokens, add_measures, losses_in, read_results
from excise.evals.run import losses, open_run, seed_spreads, seen_in_training
from excise.files import sha256_of
from excise.labels import FIRST_DOMAIN_ID, RETAIN_ID
from excise.model.gpt import n_parameters
from excise.report.runs import runs_figure
from excise.train.checkpoint import save_checkpoint
from excise.train.run import Epoch, RunDirectory
from tests.evals.runs import GENERAL, copy_of, evaluated, results_of, tiny_run, train_run
from tests.train.test_checkpoint import reseal


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return evaluated(train_run(tmp_path_factory.mktemp("runs") / "sgtm", **{"train.seed": 3}))


@pytest.fixture(scope="module")
def subject(run):
    return open_run(run)


@pytest.fixture(scope="module")
def found(run):
    return losses_in(read_results(run / "results.json"))


def ways(subject):
    """How each stage predicts."""
    ablated = {"removed": subject.removed, "context": 64}
    return dict(zip(STAGES, ({"context": 64}, ablated, {**ablated, "bias": subject.bias}), strict=True))


def test_losses_of_every_set_are_those_of_evaluating_it_alone(subject, found):
    assert list(found.sets) == ["retain", "biology", "adjacent", "general"]
    for name, corpus in subject.data.test.items():
        for stage, way in ways(subject).items():
            alone = evaluate(subject.model, corpus, **way)
            assert getattr(found.sets[name], stage) == pytest.approx(alone.mean, rel=1e-6), (name, stage)
            assert (found.sets[name].n_documents, found.sets[name].n_tokens) == (len(corpus), alone.n_tokens)
            low, high = found.sets[name].intervals[stage]
            assert low < alone.mean < high
    assert len({found.sets["biology"].before, found.sets["biology"].ablated, found.sets["biology"].calibrated}) == 3


def test_a_set_that_is_part_of_another_costs_no_forward_pass(subject, monkeypatch):
    model, test, bias, calls = subject.model, subject.data.test, subject.bias, []
    hidden = model.hidden
    monkeypatch.setattr(model, "hidden", lambda *args, **options: calls.append(1) or hidden(*args, **options))
    in_reverse = test["general"][np.arange(len(test["general"]))[::-1]]
    parts = {"adjacent": test["adjacent"], "in reverse": in_reverse}
    together = stage_losses(model, {"retain": test["retain"], **parts}, subject.removed, bias, 64)
    n_calls = len(calls)
    stage_losses(model, {"retain": test["retain"]}, subject.removed, bias, 64)
    assert n_calls == len(calls) - n_calls > 0
    for name, corpus in parts.items():
        alone = stage_losses(model, {name: corpus}, subject.removed, bias, 64)[name]
        np.testing.assert_allclose(together[name].totals, alone.totals, rtol=1e-6)
        assert together[name].n_tokens.tolist() == alone.n_tokens.tolist() == (corpus.lengths - 1).tolist()


def test_losses_of_a_category_are_sums_over_its_documents(subject, found):
    of_set = {"biology": ("biology",), "adjacent": subject.config.data.adjacent, "general": GENERAL}
    of_set["retain"] = (*of_set["adjacent"], *GENERAL, "military")
    assert set(found.categories) == {"biology", *of_set["retain"]}
    for stage, way in ways(subject).items():
        for name, categories in of_set.items():
            means = [getattr(found.categories[category], stage) for category in categories]
            n_tokens = [found.categories[category].n_tokens for category in categories]
            assert getattr(found.sets[name], stage) == pytest.approx(np.average(means, weights=n_tokens))
            assert getattr(found.category_means[name], stage) == pytest.approx(np.mean(means))
        corpus = subject.data.test["retain"]
        chemistry = corpus[np.array([corpus.categories.names[i] == "chemistry" for i in corpus.categories.index])]
        alone = evaluate(subject.model, chemistry, **way).mean
        assert getattr(found.categories["chemistry"], stage) == pytest.approx(alone, rel=1e-6)


def test_every_number_can_be_traced(run, subject):
    noted, record = results_of(run)["provenance"], results_of(run, "data.json")
    assert noted["run"] == "sgtm"
    assert (noted["step"], noted["seed"], noted["precision"]) == (4, 3, "float32")
    assert noted["checkpoint_sha256"] == sha256_of(run / "checkpoints" / "step-4" / "manifest.json")
    assert noted["data_sha256"] == subject.data.sha256 == record["data_sha256"]
    assert noted["evaluated_on_sha256"] == subject.data.held_out_sha256
    assert noted["tokenizer_sha256"] == subject.data.tokenizer.sha256 == record["tokenizer_sha256"]
    assert (noted["tokens"], noted["parameters"]) == (subject.done.tokens, n_parameters(subject.model))


def test_measures_of_the_same_checkpoint_are_kept_and_those_of_another_dropped(run, tmp_path):
    copy = copy_of(run, tmp_path / "copy")
    subject = open_run(copy)
    add_measures(subject.results_file, subject.provenance, {"of_text": []})
    assert results_of(copy)["measures"] == {**results_of(run)["measures"], "of_text": []}
    with torch.no_grad():
        subject.model.norm.bias["retain"] += 1
    save_checkpoint(copy / "checkpoints" / "step-4", subject.model, None, subject.done, RunDirectory(copy).sealed())
    add_measures(subject.results_file, subject.provenance, {"again": []})
    assert set(results_of(copy)["measures"]) == {"again"}
    assert results_of(copy)["provenance"] != results_of(run)["provenance"]


def test_results_say_the_method_and_older_ones_have_that_of_their_run(run, tmp_path):
    copy = copy_of(run, tmp_path / "copy")
    assert read_results(copy / "results.json").provenance.method == open_run(copy).provenance.method == "sgtm"
    results = results_of(copy)
    del results["provenance"]["method"]
    (copy / "results.json").write_text(json.dumps(results))
    assert read_results(copy / "results.json").provenance.method == "sgtm"
    (copy / "unlearning.json").write_text('{"method": "rmu"}')
    reseal(copy)
    assert read_results(copy / "results.json").provenance.method == open_run(copy).provenance.method == "rmu"


def test_an_earlier_checkpoint_has_a_file_of_its_own(run, tmp_path):
    copy = copy_of(run, tmp_path / "copy")
    before = (copy / "results.json").read_bytes()
    early = open_run(copy, step=2)
    add_measures(early.results_file, early.provenance, {"losses": losses(early)})
    assert (copy / "results.json").read_bytes() == before
    noted = results_of(copy, "results-step-2.json")["provenance"]
    assert noted["checkpoint_sha256"] == sha256_of(copy / "checkpoints" / "step-2" / "manifest.json")
    assert open_run(copy, step=4).results_file == copy / "results.json"


@pytest.mark.parametrize(("rule", "filter"), [("sgtm", "none"), ("none", "weak"), ("none", "none")])
def test_forget_tokens_are_those_that_training_sees(rule, filter):
    noise = {"data.undiscovered_share": 0.4, "data.false_positive_rate": 0.2}
    config = tiny_run(**{"routing.rule": rule, "data.filter": filter, **noise})
    data = load_data(config.data, config.routing.domains)
    of_category = np.array([name == "biology" for name in data.train.categories.names])[data.train.categories.index]
    truth = replace(data.train, labels=np.where(of_category, FIRST_DOMAIN_ID, RETAIN_ID).astype(np.int8))
    loaders = [Loader(corpus, config.batch, config.train.seed) for corpus in (data.train, truth)]
    labelled = unlabeled = tokens = 0
    for step in range(2 * loaders[0].steps_per_epoch):
        for batch, true in zip(*(loader.step(step) for loader in loaders), strict=True):
            assert torch.equal(batch.tokens, true.tokens), "rows do not depend on labels"
            forget = (true.labels == FIRST_DOMAIN_ID) & (true.targets != IGNORED)
            labelled += int((forget & (batch.labels == FIRST_DOMAIN_ID)).sum())
            unlabeled += int((forget & (batch.labels != FIRST_DOMAIN_ID)).sum())
            tokens += batch.n_predicted
    assert unlabeled > 0
    assert (labelled == 0) == (filter == "weak")
    assert seen_in_training(Epoch.of(config, data), tokens) == {"biology": ForgetTokens(labelled, unlabeled)}


def test_forget_tokens_are_those_of_training_whatever_a_run_is_measured_on(run, subject, found, tmp_path):
    assert found.forget_tokens == seen_in_training(Epoch.of(subject.config, subject.data), subject.done.tokens)
    other = load_data(tiny_run(**{"data.seed": 1, "data.n_stories": 24}).data, ("biology",))
    elsewhere = open_run(run, other)
    assert elsewhere.provenance.evaluated_on_sha256 == other.held_out_sha256 != subject.data.held_out_sha256
    assert elsewhere.results_file.name == f"results-on-{other.sha256[:12]}.json"
    assert losses(elsewhere).forget_tokens == found.forget_tokens
    changed = copy_of(run, tmp_path / "changed", {"data.n_stories": 24})
    with pytest.raises(ValueError, match=r"holds other data than .* was trained on"):
        open_run(changed)


def test_spreads_are_over_runs_that_differ_in_nothing_but_seeds(run, tmp_path):
    at = "measures/losses/sets/biology/ablated"
    seeds = [copy_of(run, tmp_path / f"seed{i}", {"train.seed": i, "data.seed": i}, {at: 2.0 + i}) for i in (0, 2)]
    elsewhere = copy_of(run, tmp_path / "elsewhere", {"train.seed": 6, "data.source": "other/topics"})
    longer = copy_of(run, tmp_path / "longer", {"train.seed": 4, "train.learning_rate": 0.1})
    unlearned = copy_of(run, tmp_path / "unlearned", {"train.seed": 5})
    (unlearned / "unlearning.json").write_text("{}")
    (spreads,) = seed_spreads([*seeds, longer, elsewhere, unlearned, seeds[0]])
    assert spreads.runs == ["seed0", "seed2"]
    ablated = spreads.sets["biology"]["ablated"]
    assert (ablated.mean, ablated.standard_deviation, ablated.n_runs) == pytest.approx((3.0, 2**0.5, 2))
    assert seed_spreads([run, run]) == seed_spreads(seeds, step=2) == []


def test_a_model_that_is_worse_than_a_guess_is_doubted_in_results_and_report(run, found, tmp_path):
    assert not found.doubt
    worse, subject = shutil.copytree(run, tmp_path / "worse"), open_run(run)
    with torch.no_grad():
        for parameter in subject.model.norm.parameters():
            parameter *= 100
    doubted = losses(subject)
    assert "above the 8.318 of a guess among 4,096 tokens" in doubted.doubt
    add_measures(worse / "results.json", read_results(run / "results.json").provenance, {"losses": doubted})
    assert runs_figure([worse]).caption.endswith(f"{doubted.doubt}.")
    assert "guess" not in runs_figure([run]).caption
