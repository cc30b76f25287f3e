"""Gradients of all documents at once against one document at a time."""

import copy
import json
import time
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from scipy.stats import gaussian_kde

from excise.data.packing import Corpus, evaluation_batches
from excise.evals import gradient_norms as measurement
from excise.evals.gradient_norms import GradientNorms, Spread, densities, gradient_norms
from excise.labels import UNLABELED_ID
from excise.model.ablation import ablate
from excise.recipes.paper import tinystories
from excise.train.run import build_model
from excise.train.step import accumulate
from tests.small import SMALL, random_documents, routing_for, small_model

LENGTHS = [9, 2, 33, 5, 80, 14, 3]  # 33 tokens fill the context, 80 do not fit into it


def documents_of(lengths, seed=0, vocabulary_size=SMALL.vocabulary_size):
    random = np.random.default_rng(seed)
    return [random.integers(0, vocabulary_size, n).tolist() for n in lengths]


def corpus_of(documents):
    return Corpus.of(documents, [UNLABELED_ID] * len(documents))


def by_part(tensors):
    """Named tensors joined into one long vector per part."""
    parts = {}
    for name, tensor in tensors:
        parts.setdefault(name.rsplit(".", 1)[-1], []).append(tensor.flatten())
    return {part: torch.cat(pieces) for part, pieces in parts.items()}


def naive_gradient(model, documents):
    """By part, the gradient of the mean loss over all tokens of these documents, in float64."""
    model = copy.deepcopy(model).double()
    losses = []
    for document in documents:
        tokens = torch.tensor(document[: SMALL.context + 1])
        losses.append(torch.nn.functional.cross_entropy(model(tokens[None, :-1])[0], tokens[1:], reduction="none"))
    torch.cat(losses).mean().backward()
    return by_part((name, parameter.grad) for name, parameter in model.named_parameters())


@pytest.mark.parametrize(
    ("routing", "config", "own"),
    [
        (routing_for("sgtm", embeddings="retain"), SMALL, {}),
        (routing_for("sgtm_joint_projection", embeddings="retain"), replace(SMALL, output_bias=False), {}),
        (routing_for("sgtm", n_domains=2), SMALL, {}),
        (routing_for("sgtm", n_domains=2), SMALL, {"spanish": [5, *range(30, 50)], "biology": [0, 3, 60]}),
    ],
    ids=["a module", "joint projections, no output bias", "two domains, joint embeddings", "own tokens"],
)
def test_norms_and_cosines_are_those_of_one_document_at_a_time(routing, config, own, monkeypatch):
    monkeypatch.setattr(measurement, "DOCUMENTS_PER_BATCH", 3)
    model = small_model(routing, config, own=own)
    sets = {"retain": documents_of(LENGTHS, seed=1), "spanish": documents_of(LENGTHS[::-1], seed=2)}
    labelled = {domain: random_documents(5, seed=3 + i) for i, domain in enumerate(routing.domains)}
    measured = gradient_norms(
        model, {s: corpus_of(d) for s, d in sets.items()}, {s: corpus_of(d) for s, d in labelled.items()}
    )
    parameters = by_part(model.named_parameters())
    references = {domain: naive_gradient(model, documents) for domain, documents in labelled.items()}
    for name, documents in sets.items():
        alone = [naive_gradient(model, [document]) for document in documents]
        assert set(measured.relative_gradient_norm[name]) == set(parameters)
        for part, theta in parameters.items():
            norms = [gradient[part].norm().item() / theta.norm().item() for gradient in alone]
            assert measured.relative_gradient_norm[name][part].values == pytest.approx(norms, rel=1e-4)
            for domain, reference in references.items():
                cosines = [torch.cosine_similarity(gradient[part], reference[part], 0).item() for gradient in alone]
                assert measured.cosine[name][part][domain].values == pytest.approx(cosines, abs=1e-5)


def test_a_model_that_has_lost_a_module_with_own_tokens_is_measured():
    routing = routing_for("sgtm", n_domains=2)
    model = ablate(small_model(routing, own={"spanish": [5, *range(30, 50)], "biology": [0, 3, 60]}), "spanish")
    documents = documents_of(LENGTHS, seed=1)
    measured = gradient_norms(model, {"retain": corpus_of(documents)}, {"biology": corpus_of(documents)})
    parameters = by_part(model.named_parameters())
    for part, theta in parameters.items():
        norms = [naive_gradient(model, [d])[part].norm().item() / theta.norm().item() for d in documents]
        assert measured.relative_gradient_norm["retain"][part].values == pytest.approx(norms, rel=1e-4)


def test_the_only_labelled_document_has_cosine_1_with_itself():
    corpus = corpus_of(documents_of([20]))
    measured = gradient_norms(small_model(routing_for("sgtm")), {"spanish": corpus}, {"spanish": corpus})
    for cosine in measured.cosine["spanish"].values():
        assert cosine["spanish"].values == pytest.approx([1.0], abs=1e-6)


def test_a_document_does_not_depend_on_its_companions():
    model, documents = small_model(routing_for("sgtm")), documents_of(LENGTHS)
    alone = gradient_norms(model, {"retain": corpus_of(documents[:1])}, {}).relative_gradient_norm["retain"]
    together = gradient_norms(model, {"retain": corpus_of(documents)}, {}).relative_gradient_norm["retain"]
    for part, spread in together.items():
        assert spread.values[0] == pytest.approx(alone[part].values[0], rel=1e-5)


def test_the_model_is_left_alone_and_the_result_is_json():
    model, corpus = small_model(routing_for("sgtm")), corpus_of(documents_of(LENGTHS))
    measured = gradient_norms(model, {"retain": corpus}, {"spanish": corpus})
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert not any(layer._forward_hooks for layer in model.modules())
    assert json.loads(json.dumps(asdict(measured), allow_nan=False)) == asdict(measured)
    spread = measured.relative_gradient_norm["retain"]["joint"]
    assert spread.quantiles["0.5"] == pytest.approx(np.median(spread.values))


def test_densities_integrate_to_1_and_are_those_of_scotts_rule():
    random = np.random.default_rng(0)
    logs = {"many": random.normal(-2, 0.3, 200), "two": np.array([-4.0, -3.0]), "one": np.array([-1.0])}
    norms = GradientNorms({name: {"joint": Spread.of(10**x)} for name, x in logs.items()}, {})
    grid, density = densities(norms)
    for name, x in logs.items():
        assert trapezoid(density[name]["joint"], grid) == pytest.approx(1, abs=1e-3)
        if len(x) > 1:
            assert density[name]["joint"] == pytest.approx(gaussian_kde(x)(grid))


@pytest.mark.parametrize("documents", [[], [[5]]])
def test_an_empty_set_is_refused_by_name(documents):
    model, corpus, empty = small_model(routing_for("sgtm")), corpus_of([[1, 2]]), corpus_of(documents)
    for sets, labelled in (({"x": empty}, {}), ({"retain": corpus}, {"x": empty})):
        with pytest.raises(ValueError, match="the set 'x' has no token to predict"):
            gradient_norms(model, sets, labelled)


@pytest.mark.parametrize("value", [0.0, np.inf])
def test_a_module_that_is_dead_or_broken_is_refused(value):
    model = small_model(routing_for("sgtm"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("forget/spanish"):
                parameter.fill_(value)
    with pytest.raises(ValueError, match="on 'retain' are zero or not finite; measure an unablated model"):
        gradient_norms(model, {"retain": corpus_of([[1, 2, 3]])}, {})


@pytest.mark.stress
def test_256_documents_take_less_than_10_training_steps_over_the_same_tokens():
    run = tinystories("8m")
    model, lengths = build_model(run), np.random.default_rng(0).normal(220, 60, 256).clip(20, 600).astype(int)
    corpus = corpus_of(documents_of(lengths, vocabulary_size=run.model.vocabulary_size))
    start = time.perf_counter()
    accumulate(model, list(evaluation_batches(corpus, run.batch.context, run.batch.rows_per_micro_batch)), run.routing)
    step = time.perf_counter() - start
    gradient_norms(model, {"retain": corpus}, {})
    ratio = (time.perf_counter() - start - step) / step
    assert ratio < 10, f"{ratio:.2f} training steps"
