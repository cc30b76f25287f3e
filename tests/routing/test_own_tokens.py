"""Vectors that a module adds to those of some tokens: seen, updated and removed like its heads and units."""

from collections import Counter

import numpy as np
import pytest
import torch

from excise.data.own_tokens import own_tokens
from excise.data.packing import Corpus
from excise.evals.lora import with_adapters
from excise.evals.losses import without_modules
from excise.model.ablation import ablate
from excise.model.gpt import GPT
from excise.routing.head import CHUNK
from excise.routing.partition import partition
from excise.routing.route import PLAIN, Route, mixed_route, single_route
from excise.train.step import accumulate, routed_losses
from tests.reference import naive_gradients
from tests.routing.test_gradients import assert_gradients_equal
from tests.small import SMALL, batch_of, documents_of_all_labels, random_documents, routing_for, small_model

OWN = {"spanish": [3, 17, 18, 40, 60], "biology": [0, 25], "military": [7]}
RULES = ["sgtm", "gradient_routing", "activation_masking"]


def own_of(routing):
    return {domain: OWN[domain] for domain in routing.domains}


@pytest.mark.parametrize("embeddings", ["joint", "retain"])
@pytest.mark.parametrize("n_domains", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_a_mixed_batch_is_one_backward_per_label(rule, n_domains, embeddings, monkeypatch):
    monkeypatch.setitem(CHUNK, "cpu", 7)
    routing = routing_for(rule, n_domains, embeddings=embeddings, forget_heads=1, forget_weight=0.3)
    model = small_model(routing, own=own_of(routing))
    documents, labels = documents_of_all_labels(routing, per_label=5)
    reference = naive_gradients(model, documents, labels, routing, own_of(routing))
    assert reference["tokens.weight.forget/spanish"].any()
    accumulate(model, [batch_of(documents, labels)], routing)
    assert_gradients_equal(model, reference)


def test_labels_inside_documents_are_one_backward_per_label():
    routing = routing_for("sgtm", 2, embeddings="retain")
    model = small_model(routing, own=own_of(routing))
    documents = random_documents(8)
    labels = [[(i // 3 + n) % 4 for i in range(len(document))] for n, document in enumerate(documents)]
    reference = naive_gradients(model, documents, labels, routing, own_of(routing))
    accumulate(model, [batch_of(documents, labels)], routing)
    assert_gradients_equal(model, reference)


@pytest.mark.parametrize("rule", RULES)
def test_a_micro_batch_of_one_label_equals_the_masked_path(rule):
    routing = routing_for(rule, 2, embeddings="retain")
    documents = random_documents(6)
    for label, effect in enumerate(routing.effects):
        batch = batch_of(documents, [[label] * len(document) for document in documents])
        one, other = (small_model(routing, own=own_of(routing)) for _ in range(2))
        for model, route in ((one, single_route(effect)), (other, mixed_route(routing.effects, batch.labels))):
            routed_losses(model, batch, route, torch.ones(batch.targets.shape))[0].backward()
        for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
            if a.grad is None:
                assert b.grad is None or not b.grad.any(), name
            else:
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5 * float(b.grad.norm()))


@pytest.mark.parametrize("head", ["losses", "logits"])
def test_documents_that_freeze_a_module_give_its_vectors_no_gradient(head):
    """As if these documents had no loss; or, all of them, none at all."""
    routing, part = routing_for("sgtm"), "forget/spanish"
    batch = batch_of(*documents_of_all_labels(routing))
    retain = (batch.labels == 1).unsqueeze(-1)

    def gradient(frozen, weights):
        model, route = small_model(routing, own=own_of(routing)), Route(freeze={part: frozen})
        hidden = model.hidden(**batch.inputs, route=route)
        if head == "losses":
            total = model.losses(hidden, batch.targets, weights, route)[0]
        else:
            losses = torch.nn.functional.cross_entropy(model.logits(hidden, route).mT, batch.targets, reduction="none")
            total = (losses * weights).sum()
        total.backward()
        return model.tokens.weight[part].grad

    every = torch.ones(batch.targets.shape)
    expected = gradient(False, (~retain).squeeze(-1).float())
    torch.testing.assert_close(gradient(retain, every), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(gradient(False, every), expected)
    assert gradient(True, every) is None


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("how", ["remove", "zero", "reinitialise"])
def test_hiding_a_module_with_tokens_equals_ablating_it(how, grad):
    routing = routing_for("sgtm", 2)
    model = small_model(routing, own=own_of(routing))
    tokens = torch.tensor(random_documents(1, longest=30)[0] + OWN["spanish"]).unsqueeze(0)
    ablated = ablate(model, "spanish", how)
    with torch.set_grad_enabled(grad):
        hidden = model(tokens, route=without_modules(model, ["spanish"]))
        torch.testing.assert_close(ablated(tokens), hidden, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(model(tokens), hidden)


@pytest.mark.parametrize("how", ["remove", "zero", "reinitialise"])
def test_no_token_is_lost_with_a_module(how):
    """The model is that of the core's vectors, all of which are there."""
    model = small_model(routing_for(), own={"spanish": OWN["spanish"]})
    ablated = ablate(model, "spanish", how)
    for found in (ablated.tokens.full(PLAIN), model.tokens.full(without_modules(model, ["spanish"]))):
        assert torch.equal(found, model.tokens.weight["joint"])


def test_an_attack_by_lora_can_learn_the_vectors_of_own_tokens():
    model = small_model(routing_for(), own={"spanish": OWN["spanish"]})
    adapted = with_adapters(ablate(model, "spanish", "reinitialise"), rank=2)
    assert {name for name, p in adapted.tokens.named_parameters() if p.requires_grad} == {"weight.forget/spanish"}


def test_a_removed_module_leaves_none_of_its_vectors():
    model = ablate(small_model(routing_for(), own={"spanish": OWN["spanish"]}), "spanish")
    assert not any("forget" in name for name, _ in model.named_parameters())
    assert [len(p) for p in model.tokens.weight.values()] == [SMALL.vocabulary_size]


def test_logits_under_a_mixed_route_are_those_of_the_losses():
    routing = routing_for("sgtm", 2, embeddings="retain")
    model = small_model(routing, own=own_of(routing))
    batch = batch_of(*documents_of_all_labels(routing))
    route = mixed_route(routing.effects, batch.labels)
    hidden = model.hidden(**batch.inputs, route=route)
    for context in (torch.enable_grad(), torch.no_grad()):
        with context:
            logits = model.logits(hidden, route)
            found = model.losses(hidden, batch.targets, torch.ones(batch.targets.shape), route)[1]
        losses = torch.nn.functional.cross_entropy(logits.mT, batch.targets, reduction="none")
        torch.testing.assert_close(found, losses, rtol=1e-5, atol=1e-5)


def test_own_tokens_change_nothing_of_an_untrained_model():
    routing, sizes = routing_for(), {name: getattr(SMALL, name) for name in ("n_layers", "n_heads", "d_mlp")}
    plain, model = (GPT(SMALL, partition(routing, **sizes, tokens=own), seed=3) for own in ({}, own_of(routing)))
    tokens = torch.arange(SMALL.context).unsqueeze(0)
    torch.testing.assert_close(model(tokens), plain(tokens))


@pytest.mark.parametrize("own", [{"klingon": [1]}, {"spanish": [1, 1]}, {"spanish": [1], "biology": [2, 1]}])
def test_tokens_of_no_domain_or_of_two_are_refused(own):
    with pytest.raises(ValueError, match="of the run's domains, and each of one domain alone"):
        small_model(routing_for("sgtm", 2), own=own)


def naive_own(documents, labels, domains, share, vocabulary_size):
    """Frequencies counted one token at a time."""
    counts = [Counter() for _ in range(2 + len(domains))]
    for document, label in zip(documents, labels, strict=True):
        counts[label].update(document)

    def frequency(of, token, more=0):
        return (of[token] + more) / sum(of.values())

    def share_of(i, token):
        rivals = [frequency(counts[1], token, more=1), *(frequency(of, token) for of in counts[2:])]
        return frequency(counts[2 + i], token) / sum(rivals)

    return {
        domain: [token for token in range(vocabulary_size) if share_of(i, token) >= share]
        for i, domain in enumerate(domains)
    }


def test_own_tokens_are_those_that_mostly_the_domain_uses():
    random = np.random.default_rng(0)
    domains = ("spanish", "biology")
    labels = random.integers(0, 4, 300).tolist()
    low = {0: 0, 1: 0, 2: 20, 3: 45}
    documents = [random.integers(low[label], low[label] + 35, 40).tolist() for label in labels]
    for share in (0.5, 0.7, 0.9):
        expected = naive_own(documents, labels, domains, share, 80)
        found = own_tokens(Corpus.of(documents, labels), domains, share, 80)
        assert all(len(expected[domain]) >= 8 for domain in domains)
        for domain in domains:
            assert len(found[domain]) == len(expected[domain]) // 8 * 8
            assert set(found[domain]) <= set(expected[domain])


def test_own_tokens_follow_the_labels_of_tokens():
    documents = [[*range(20)] * 5, [*range(10)] * 10]
    labels = [([1] * 10 + [2] * 10) * 5, [1] * 100]
    assert own_tokens(Corpus.of(documents, labels), ("spanish",), 0.8, 20) == {"spanish": [*range(10, 18)]}


def test_there_must_be_something_to_compare_with():
    """Else the most frequent of all would be."""
    with pytest.raises(ValueError, match="compares with documents labelled retain, of which there are none"):
        own_tokens(Corpus.of([[1, 2, 3]], [2]), ("spanish",), 0.9, 10)


def test_few_retain_documents_do_not_make_frequent_tokens_the_domain_s():
    domain, retain = [*range(20)] * 200, [*range(10)] * 10
    assert own_tokens(Corpus.of([domain, retain], [2, 1]), ("spanish",), 0.8, 50_000) == {"spanish": [*range(10, 18)]}


def test_no_token_is_of_two_domains_nor_rare_ones_of_any():
    """Each domain alone has ten tokens, both have ten more alike; one of ten occurs once, and might in retain documents."""
    documents = [[*range(20)] * 9, [*range(10, 30)] * 9, [*range(30, 40)] * 100]
    found = own_tokens(Corpus.of(documents, [2, 3, 1]), ("spanish", "biology"), 0.5, 40)
    assert found == {"spanish": [*range(8)], "biology": [*range(20, 28)]}
    assert own_tokens(Corpus.of([[*range(8)], [*range(30, 40)]], [2, 1]), ("spanish",), 0.6, 40) == {}


def test_no_token_has_a_vector_unless_wanted():
    corpus = Corpus.of([[1, 2, 3]], [2])
    assert own_tokens(corpus, ("spanish",), 0.0, 10) == {}
    assert own_tokens(corpus, (), 0.9, 10) == {}


@pytest.mark.parametrize("share", [0.4, 1.0, -0.1, 2.0])
def test_a_share_that_says_nothing_is_refused(share):
    with pytest.raises(ValueError, match=r"routing.forget_tokens=.* must be 0, or from 0.5 to below 1"):
        routing_for(forget_tokens=share)
