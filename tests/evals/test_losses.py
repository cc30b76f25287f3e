"""Losses and calibration against plain computations."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from excise.data.packing import Corpus
from excise.evals import calibration
from excise.evals.calibration import ALPHA, PRIOR, calibrate
from excise.evals.losses import AblationLosses, DocumentLosses, evaluate, stage_losses, without_modules
from excise.evals.results import Claim, recovered
from excise.evals.samples import continue_text
from excise.model.ablation import ablate
from tests.reference import naive_losses
from tests.small import SMALL, random_documents, routing_for, small_model


def corpora():
    return {
        "retain": Corpus.of(random_documents(12, seed=1), [1] * 12),
        "spanish": Corpus.of(random_documents(12, seed=2), [2] * 12),
    }


def test_loss_is_the_sum_over_all_tokens_of_all_documents():
    routing = routing_for("sgtm")
    model = small_model(routing)
    documents = random_documents(12, seed=1)
    alone = [
        naive_losses(model, d, [routing.effects[0]] * (len(d) - 1), torch.ones(len(d) - 1, dtype=torch.bool)).sum()
        for d in documents
    ]
    loss = evaluate(model, corpora()["retain"])
    assert loss.n_tokens == sum(len(document) - 1 for document in documents)
    assert loss.total == pytest.approx(sum(float(losses.detach()) for losses in alone), rel=1e-5)


def test_removed_modules_are_those_of_the_ablated_model():
    model = small_model(routing_for("sgtm"))
    corpus = corpora()["spanish"]
    expected = evaluate(ablate(model, "spanish"), corpus).mean
    assert evaluate(model, corpus, removed=["spanish"]).mean == pytest.approx(expected, rel=1e-5)
    assert evaluate(model, corpus).mean != pytest.approx(expected, rel=1e-3)


def definition(model):
    """Forget loss + alpha x retain loss + L2 and its gradient, in float64, straight from the logits of each document."""
    terms, weights = [], [[ALPHA / corpora()["retain"].n_predicted] for _ in range(SMALL.vocabulary_size)]
    for name, corpus in corpora().items():
        weight = (ALPHA if name == "retain" else 1.0) / corpus.n_predicted
        for start, n in zip(corpus.starts, corpus.lengths, strict=True):
            tokens = torch.as_tensor(corpus.tokens[start : start + n].astype(np.int64))
            with torch.no_grad():
                logits = model(tokens[None, :-1], route=without_modules(model, ["spanish"]))[0]
            terms.append((weight, logits.double().numpy(), tokens[1:].numpy()))
            for token in tokens[1:]:
                weights[token].append(weight)
    l2 = PRIOR * np.array([np.mean(of_token) for of_token in weights])

    def value_and_gradient(bias):
        value, gradient = (l2 / 2 * np.square(bias)).sum(), l2 * bias
        for weight, logits, targets in terms:
            log_p = log_softmax(logits + bias, axis=-1)
            value -= weight * log_p[np.arange(len(targets)), targets].sum()
            gradient = gradient + weight * (np.exp(log_p).sum(0) - np.bincount(targets, minlength=len(bias)))
        return value, gradient

    return value_and_gradient


@pytest.mark.parametrize("kept", [1 << 30, 0])
def test_calibration_finds_the_optimum_of_a_convex_solver(kept, monkeypatch):
    monkeypatch.setattr(calibration, "KEPT_BYTES", kept)
    model = small_model(routing_for("sgtm"))
    bias = calibrate(model, corpora(), ["spanish"], SMALL.context).double().numpy()
    objective = definition(model)
    solved = minimize(
        objective, np.zeros(SMALL.vocabulary_size), jac=True, method="L-BFGS-B", options={"maxiter": 5000}
    )
    assert objective(bias)[0] - solved.fun < 1e-3
    difference = (bias - solved.x)[np.unique(corpora()["retain"].tokens)]
    assert np.abs(difference - difference.mean()).max() < 0.05, "but for a constant, which no loss sees"


def means_of(model, sets, bias):
    found = stage_losses(model, sets, ["spanish"], bias)
    return {name: AblationLosses.mean_of([losses]) for name, losses in found.items()}


def test_categories_weigh_the_same_whatever_their_tokens():
    long = DocumentLosses(np.array([[300.0, 400.0, 500.0], [100.0, 200.0, 300.0]]), np.array([60, 40]))
    short = DocumentLosses(np.array([[8.0, 8.0, 8.0]]), np.array([1]))
    assert AblationLosses.mean_of([long, short]) == AblationLosses((4 + 8) / 2, (6 + 8) / 2, (8 + 8) / 2)


def test_the_weights_of_the_sets_decide_whether_a_domains_tokens_are_raised():
    """Weighed alike, tokens that only the domain uses are raised; retain data that weigh a hundredfold keep them down."""
    model = small_model(routing_for("sgtm"))
    random = np.random.default_rng(3)
    low = [random.integers(0, 30, 12).tolist() for _ in range(30)]
    high = [random.integers(30, 61, 12).tolist() for _ in range(30)]
    sets = {"retain": Corpus.of(low, [1] * 30), "spanish": Corpus.of(high, [2] * 30)}

    def losses(alpha):
        bias = calibrate(model, sets, ["spanish"], SMALL.context, weights={"retain": alpha, "spanish": 1.0})
        return means_of(model, sets, bias)

    weighed, even = losses(ALPHA), losses(1.0)
    assert weighed["retain"].calibrated < weighed["retain"].ablated
    assert even["spanish"].calibrated < min(even["spanish"].ablated, weighed["spanish"].calibrated - 0.5)
    assert even["retain"].calibrated > weighed["retain"].calibrated


def test_calibration_costs_a_model_that_needs_none_next_to_nothing_on_other_documents():
    """There are fewer than two predictions for each bias, which under a weak prior follow chance: with 0.05 others lose 0.4."""
    model = small_model(routing_for("none"))
    given, others = drawn_from(model, 3, seed=1), drawn_from(model, 200, seed=2)
    bias = calibrate(model, {"retain": given}, [], SMALL.context)

    def change(corpus):
        return evaluate(model, corpus, bias=bias).mean - evaluate(model, corpus).mean

    assert change(given) < -0.05, "or nothing was fitted"
    assert change(others) < 0.03


def drawn_from(model, n, seed):
    """Documents that the model has written itself."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(n, 1, dtype=torch.long)
    with torch.no_grad():
        for _ in range(SMALL.context):
            p = model(tokens)[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(p, 1, generator=generator)], 1)
    return Corpus.of(tokens.tolist(), [1] * n)


def test_recovered_is_0_for_the_data_filter_and_1_for_the_perfect_filter():
    assert recovered(4.0, data_filter=4.0, perfect_filter=8.0) == 0
    assert recovered(7.0, data_filter=4.0, perfect_filter=8.0) == 0.75
    assert recovered(9.0, data_filter=4.0, perfect_filter=8.0) == 1


def test_claims_can_fail():
    assert Claim.at_least("a", 0.8, 0.8).holds
    assert not Claim.at_least("a", 0.79, 0.8).holds
    assert Claim.at_most("a", 0.8, 0.8).holds
    assert not Claim.at_most("a", 0.81, 0.8).holds


class LetterTokenizer:
    """Tokens are numbers written out, for a model whose vocabulary means nothing."""

    end_of_text, vocabulary_size = 0, SMALL.vocabulary_size

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, tokens):
        return " ".join(map(str, tokens))


def test_continuations_are_seeded_and_the_coldest_is_the_likeliest():
    model = small_model(routing_for("sgtm"))
    tokenizer = LetterTokenizer()
    once, again = (continue_text(model, tokenizer, "5 6 7", n_tokens=10, seed=1) for _ in range(2))
    assert once == again
    cold = continue_text(model, tokenizer, "5 6 7", n_tokens=1, temperature=0)
    assert int(cold or 0) == int(model(torch.tensor([[5, 6, 7]]))[0, -1].argmax())


def test_an_empty_prompt_is_an_error():
    with pytest.raises(ValueError, match="the prompt is empty"):
        continue_text(small_model(routing_for("sgtm")), LetterTokenizer(), "")


def test_adjacent_and_general_data_have_weights_of_their_own():
    model, random = small_model(routing_for("sgtm")), np.random.default_rng(4)
    ranges = {"retain": (0, 30), "adjacent": (0, 15), "general": (15, 30), "spanish": (30, 61)}
    documents = {name: [random.integers(*of, 12).tolist() for _ in range(30)] for name, of in ranges.items()}
    sets = {name: Corpus.of(of, [1] * 30) for name, of in documents.items()}

    def losses(weights, given=sets):
        bias = calibrate(model, given, ["spanish"], SMALL.context, weights=weights)
        return {name: of.calibrated for name, of in means_of(model, sets, bias).items()}

    adjacent, general = (losses({name: 100.0, "spanish": 1.0}) for name in ("adjacent", "general"))
    assert adjacent["adjacent"] < general["adjacent"] - 0.5
    assert general["general"] < adjacent["general"] - 0.5
    without_groups = {name: sets[name] for name in ("retain", "spanish")}
    assert losses(None) == losses(None, without_groups), "which by themselves weigh nothing"
    with pytest.raises(ValueError, match="no set 'adjacint' to calibrate on; did you mean 'adjacent'"):
        losses({"adjacint": 1.0})
