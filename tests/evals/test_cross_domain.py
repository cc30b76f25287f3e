"""The cross-domain matrix against models ablated one module after the other."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from excise.data.packing import Corpus
from excise.evals.cross_domain import cross_domain
from excise.evals.losses import evaluate
from excise.model.ablation import ablate
from excise.routing.rules import RoutingConfig
from tests.small import SMALL, random_documents, routing_for, small_model

DOMAINS = ("spanish", "biology", "military")
NONE = Corpus.of([], [])


def sets_for(domains):
    names = ("retain", *domains)
    return {name: Corpus.of(random_documents(4, seed=i), [0] * 4) for i, name in enumerate(names)}


def test_every_subset_is_the_model_ablated_in_turn():
    model, sets = small_model(routing_for("sgtm", 3)), sets_for(DOMAINS)
    rows = cross_domain(model, sets).rows
    for row in rows:
        ablated = model
        for domain in row.removed:
            ablated = ablate(ablated, domain)
        assert list(row.losses) == ["retain", *DOMAINS]
        for name, loss in row.losses.items():
            assert loss == pytest.approx(evaluate(ablated, sets[name]).mean, rel=1e-5)
    assert len({round(row.losses["retain"], 4) for row in rows}) == 8, "every module matters"


def test_all_subsets_come_once_from_the_full_model_to_the_core():
    rows = cross_domain(small_model(routing_for("sgtm", 3)), sets_for(DOMAINS)).rows
    assert (rows[0].removed, rows[-1].removed) == ((), DOMAINS)
    assert len({frozenset(row.removed) for row in rows}) == len(rows) == 8


def test_any_other_set_is_measured_too_at_the_context_asked_for():
    model, sets = small_model(routing_for("sgtm")), sets_for(("spanish", "adjacent"))
    result = cross_domain(model, sets, subsets=[["spanish"]], context=5)
    (row,) = json.loads(json.dumps(asdict(result)))["rows"]
    assert row["removed"] == ["spanish"]
    expected = evaluate(model, sets["adjacent"], removed=["spanish"], context=5).mean
    assert row["losses"]["adjacent"] == pytest.approx(expected)


def test_more_than_eight_domains_need_a_list_of_subsets():
    domains = tuple("abcdefghi")
    routing = RoutingConfig(rule="sgtm", domains=domains, forget_heads=1, forget_units=1)
    model = small_model(routing, replace(SMALL, n_heads=12))
    with pytest.raises(ValueError, match=r"^9 domains have 512 subsets, .*; pass those of interest as a list"):
        cross_domain(model, sets_for(domains))
    (row,) = cross_domain(model, sets_for(domains), subsets=[("a", "i")]).rows
    assert row.removed == ("a", "i")


@pytest.mark.parametrize(
    ("changes", "subsets", "message"),
    [
        ({}, [["spanihs"]], "the model has no module 'spanihs'; did you mean 'spanish'"),
        ({"spanish": NONE}, None, "there is no text for the loss on 'spanish'"),
        ({"general": NONE}, None, "there is no text for the loss on 'general'"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, subsets, message):
    with pytest.raises(ValueError, match=message):
        cross_domain(small_model(routing_for("sgtm")), sets_for(["spanish"]) | changes, subsets=subsets)


def test_a_domain_without_a_set_is_refused():
    with pytest.raises(ValueError, match="there is no text for the loss on 'biology'"):
        cross_domain(small_model(routing_for("sgtm", 2)), sets_for(["spanish"]))


def test_a_loss_that_is_not_finite_is_refused():
    model = small_model(routing_for("sgtm"))
    with torch.no_grad():
        model.tokens.weight["joint"].fill_(torch.nan)
    with pytest.raises(ValueError, match="a loss is not finite with nothing removed"):
        cross_domain(model, sets_for(["spanish"]))
