"""Ablation: a module that is gone is as if it had never been built."""

import pytest
import torch

from excise.evals.losses import without_modules
from excise.labels import forget_part, part_of
from excise.model.ablation import ablate
from excise.model.gpt import GPT
from tests.reference import naive_losses
from tests.routing.paper import effect_of
from tests.small import ROUTED_RULES, SMALL, batch_of, random_documents, routing_for, small_model


def tokens():
    return torch.randint(0, SMALL.vocabulary_size, (3, SMALL.context), generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("rule", ROUTED_RULES)
def test_hiding_a_module_is_ablating_it_first(rule):
    model = small_model(routing_for(rule, 2))
    hidden = model(tokens(), route=without_modules(model, ["biology"]))
    torch.testing.assert_close(ablate(model, "biology")(tokens()), hidden, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", ROUTED_RULES)
def test_ablated_model_is_one_built_without_the_module(rule):
    model = small_model(routing_for(rule, 2))
    built = GPT(SMALL, model.partition.without("biology"))
    kept = {name: value for name, value in model.state_dict().items() if part_of(name) != forget_part("biology")}
    built.load_state_dict(kept, strict=True)
    assert torch.equal(ablate(model, "biology")(tokens()), built(tokens()))
    torch.testing.assert_close(ablate(model, "biology", "zero")(tokens()), built(tokens()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", ROUTED_RULES)
def test_retain_data_is_computed_as_by_the_ablated_model(rule):
    routing = routing_for(rule)
    model = small_model(routing)
    (document,) = random_documents(1)
    live = torch.ones(len(document) - 1, dtype=torch.bool)
    batch = batch_of([document], [[1] * len(document)])
    ablated = ablate(model, "spanish")
    hidden = ablated.hidden(**batch.inputs)
    _, losses = ablated.losses(hidden, batch.targets, torch.ones(batch.targets.shape))
    reference = naive_losses(model, document, [effect_of(routing, 1)] * len(live), live)
    torch.testing.assert_close(losses[batch.documents == 0], reference, rtol=1e-5, atol=1e-5)


def test_any_subset_of_modules_can_be_removed_in_any_order():
    model = small_model(routing_for("sgtm", 3, forget_heads=1))
    one_way = ablate(ablate(model, "spanish"), "military")
    other_way = ablate(ablate(model, "military"), "spanish")
    assert torch.equal(one_way(tokens()), other_way(tokens()))
    assert not torch.allclose(one_way(tokens()), model(tokens()))
    assert {part_of(name) for name, _ in one_way.named_parameters()} == {"retain", "joint", "forget/biology"}


def test_zeroed_units_get_no_gradient_and_reinitialised_ones_do():
    model = small_model(routing_for("sgtm"))
    for how, alive in (("zero", False), ("reinitialise", True)):
        ablated = ablate(model, "spanish", how)
        ablated(tokens()).square().sum().backward()
        gradients = [p.grad for name, p in ablated.named_parameters() if part_of(name) == forget_part("spanish")]
        assert any(bool(gradient.any()) for gradient in gradients) == alive


def test_reinitialised_module_holds_nothing_of_the_trained_one():
    model = small_model(routing_for("sgtm"))
    fresh = dict(ablate(model, "spanish", "reinitialise", seed=5).named_parameters())
    for name, parameter in model.named_parameters():
        if part_of(name) == forget_part("spanish"):
            assert not (parameter == fresh[name]).any()
        else:
            assert torch.equal(parameter, fresh[name])


def test_ablation_leaves_the_given_model_alone():
    model = small_model(routing_for("sgtm"))
    before = model(tokens())
    ablate(model, "spanish", "zero")
    assert torch.equal(model(tokens()), before)


def test_a_module_that_is_not_there_is_an_error_with_the_nearest_name():
    with pytest.raises(ValueError, match="no module 'spansh'; did you mean 'spanish'"):
        ablate(small_model(routing_for("sgtm")), "spansh")
