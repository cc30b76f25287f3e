"""Rules and partitions against tables written by hand."""

from typing import get_args, get_type_hints

import pytest

from excise.model.gpt import GPT
from excise.routing.partition import partition
from excise.routing.rules import RULES, RoutingConfig
from tests.routing.paper import CORE, EFFECTS, effect_of, parameters_of, rows_of
from tests.small import SMALL, routing_for

CHOICES = [
    (rule, embeddings, norms)
    for rule in RULES
    for embeddings in ("joint", "retain")
    for norms in ("joint", "retain")
    if (rule, embeddings) != ("sgtm_joint_embeddings", "retain")
]
"""Rules, and parts of the embeddings and of the norms; one rule is about joint embeddings."""


@pytest.mark.parametrize("sizes", [{}, {"layers": (0, 2)}, {"layers": (1,)}, {"forget_heads": 0}])
@pytest.mark.parametrize("n_domains", [1, 2])
@pytest.mark.parametrize(("rule", "embeddings", "norms"), CHOICES)
def test_every_parameter_is_in_the_part_that_the_paper_names(rule, embeddings, norms, n_domains, sizes):
    routing = routing_for(rule, n_domains, embeddings=embeddings, norms=norms, **sizes)
    parts = partition(routing, n_layers=SMALL.n_layers, n_heads=SMALL.n_heads, d_mlp=SMALL.d_mlp)
    shapes = {name: tuple(parameter.shape) for name, parameter in GPT(SMALL, parts).named_parameters()}
    assert shapes == parameters_of(routing, SMALL, {})


@pytest.mark.parametrize("n_domains", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_every_label_does_what_the_paper_says(rule, n_domains):
    routing = routing_for(rule, n_domains, embeddings="joint")
    assert len(routing.effects) == 2 + n_domains
    for label, effect in enumerate(routing.effects):
        assert (effect.hide, effect.detach, effect.freeze) == effect_of(routing, label)


def test_the_names_of_the_rules_are_those_of_the_table():
    assert get_args(get_type_hints(RoutingConfig)["rule"]) == tuple(RULES)
    assert set(RULES) == set(rows_of(EFFECTS)) == {row for row in rows_of(CORE) if "/" not in row}


def test_embeddings_are_retain_and_norms_joint_unless_specified_otherwise():
    assert (RoutingConfig().embeddings, RoutingConfig().norms) == ("retain", "joint")
