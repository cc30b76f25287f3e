"""The heart: gradients of mixed batches against a naive reference, for every rule."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from excise.labels import UNLABELED_ID, forget_part, label_names, part_of
from excise.routing.head import head_losses
from excise.routing.linear import INPUT, OUTPUT, routed_linear
from excise.routing.route import PLAIN, Route, mixed_route, single_route
from excise.routing.split import Norm
from excise.train.step import accumulate, route_of, routed_losses, touched_parts
from tests.reference import naive_gradients
from tests.small import ROUTED_RULES, batch_of, documents_of_all_labels, random_documents, routing_for, small_model


def assert_gradients_equal(model, reference):
    for name, parameter in model.named_parameters():
        expected = reference[name]
        if parameter.grad is None:
            assert not expected.any(), f"{name} got no gradient"
        else:
            error = (parameter.grad - expected).norm() / (expected.norm() + 1e-12)
            assert error < 1e-5, f"{name}: relative error {error:.1e}"


def backward_from(model, batch, route, rows=None):
    """Gradients of the summed losses of some rows, or of all."""
    weights = torch.ones(batch.targets.shape) if rows is None else rows.float()
    loss, _ = routed_losses(model, batch, route, weights)
    loss.backward()


def variants(rule):
    embeddings = ("joint",) if rule == "sgtm_joint_embeddings" else ("joint", "retain")
    return [(rule, part, norms) for part, norms in zip(embeddings, ("joint", "retain"), strict=False)]


CASES = [case for rule in ROUTED_RULES for case in variants(rule)]


@pytest.mark.parametrize("n_domains", [1, 3])
@pytest.mark.parametrize(("rule", "embeddings", "norms"), CASES)
def test_mixed_batch_is_one_backward_per_label(rule, embeddings, norms, n_domains):
    heads = 2 if n_domains == 1 else 1
    routing = routing_for(
        rule, n_domains, embeddings=embeddings, norms=norms, forget_weight=0.3, forget_heads=heads, layers=(0, 2)
    )
    model = small_model(routing)
    documents, labels = documents_of_all_labels(routing)
    batch = batch_of(documents, labels)
    assert any(len(row.unique()) > 2 for row in batch.labels), "rows should hold documents of several labels"
    reference = naive_gradients(model, documents, labels, routing)
    accumulate(model, [batch], routing)
    assert_gradients_equal(model, reference)


SIZES = [{}, {"layers": (1,)}, {"forget_heads": 0}, {"forget_units": 0}]
"""Modules in all blocks and in one, and without heads or units: a block may have nothing of a module."""


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("rule", "embeddings", "norms"), CASES)
def test_micro_batch_of_one_label_equals_the_masked_path(rule, embeddings, norms, sizes):
    if rule == "sgtm_joint_attention" and "forget_units" in sizes:
        pytest.skip("its modules have nothing but units")
    routing = routing_for(rule, 2, embeddings=embeddings, norms=norms, **sizes)
    documents = random_documents(6)
    for label, effect in enumerate(routing.effects):
        batch = batch_of(documents, [[label] * len(document) for document in documents])
        one, other = small_model(routing), small_model(routing)
        backward_from(one, batch, single_route(effect))
        backward_from(other, batch, mixed_route(routing.effects, batch.labels))
        for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
            if a.grad is None:
                assert b.grad is None or not b.grad.any(), name
            else:
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5 * float(b.grad.norm()))


def uniform_batch(label):
    documents = random_documents(6)
    return batch_of(documents, [[label] * len(document) for document in documents])


def test_a_micro_batch_of_forget_data_computes_no_gradient_of_retain_parameters():
    """None, and not zeros: the output head's is left out too."""
    routing = routing_for("sgtm", 2, embeddings="retain", norms="retain")
    model = small_model(routing)
    backward_from(model, uniform_batch(2), single_route(routing.effects[2]))
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (part_of(name) == "forget/spanish"), name


def test_a_micro_batch_of_retain_data_computes_no_heads_and_units_of_modules():
    routing = routing_for("sgtm", 2)
    model = small_model(routing)
    widths = []
    for block in model.blocks:
        for layer in (block.attention.qkv, block.mlp.up):
            layer.register_forward_hook(lambda layer, _, y: widths.append((y.shape[-1], len(layer.weight["retain"]))))
    backward_from(model, uniform_batch(1), single_route(routing.effects[1]))
    assert len(widths) == 2 * len(model.blocks)
    assert all(computed == of_core for computed, of_core in widths)
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == part_of(name).startswith("forget/"), name


@pytest.mark.parametrize("rule", ROUTED_RULES)
def test_forget_data_gives_theta_retain_no_gradient(rule):
    routing = routing_for(rule, 2, embeddings="joint")
    model = small_model(routing)
    documents, labels = documents_of_all_labels(routing)
    batch = batch_of(documents, labels)
    backward_from(model, batch, route_of(batch, routing.effects), batch.labels >= 2)
    for name, parameter in model.named_parameters():
        if part_of(name) == "retain":
            assert not parameter.grad.any(), name


@pytest.mark.parametrize("rule", ROUTED_RULES)
def test_retain_data_gives_theta_forget_no_gradient(rule):
    routing = routing_for(rule, 2)
    model = small_model(routing)
    documents, labels = documents_of_all_labels(routing)
    batch = batch_of(documents, labels)
    backward_from(model, batch, route_of(batch, routing.effects), batch.labels == 1)
    for name, parameter in model.named_parameters():
        if part_of(name).startswith("forget/"):
            assert not parameter.grad.any(), name


def documents_with_labels_inside(routing):
    documents = random_documents(8, longest=16)
    generator = torch.Generator().manual_seed(5)
    n_labels = len(label_names(routing.domains))
    return documents, [torch.randint(0, n_labels, (len(d),), generator=generator).tolist() for d in documents]


@pytest.mark.parametrize("rule", ROUTED_RULES)
@pytest.mark.parametrize("n_domains", [1, 3])
def test_labels_inside_documents_are_one_backward_per_label(rule, n_domains):
    routing = routing_for(rule, n_domains, forget_heads=2 if n_domains == 1 else 1)
    model = small_model(routing)
    documents, labels = documents_with_labels_inside(routing)
    reference = naive_gradients(model, documents, labels, routing)
    batch = batch_of(documents, labels)
    assert batch.mixed_documents
    accumulate(model, [batch], routing)
    assert_gradients_equal(model, reference)


def test_a_forget_token_leaks_nothing_through_other_tokens_of_its_document():
    routing = routing_for("sgtm", embeddings="retain", norms="retain")
    model = small_model(routing)
    documents, labels = documents_with_labels_inside(routing)
    batch = batch_of(documents, labels)
    backward_from(model, batch, route_of(batch, routing.effects), batch.labels == 2)
    for name, parameter in model.named_parameters():
        if part_of(name) == "retain":
            assert not parameter.grad.any(), name
        elif part_of(name) == forget_part("spanish"):
            assert parameter.grad.any(), name


def test_labels_inside_a_document_leave_the_forward_pass_as_it_is():
    routing = routing_for("none")
    model = small_model(routing)
    documents, labels = documents_with_labels_inside(routing)
    routed = batch_of(documents, labels)
    plain = batch_of(documents, [[UNLABELED_ID] * len(document) for document in documents])
    sgtm = routing_for("sgtm").effects[0]
    ones = torch.ones(plain.targets.shape)
    _, stopped = routed_losses(model, routed, mixed_route([sgtm] * 3, routed.labels, mixed_documents=True), ones)
    _, expected = routed_losses(model, plain, PLAIN, ones)
    torch.testing.assert_close(stopped, expected, rtol=1e-5, atol=1e-6)


def test_touched_parts_are_what_the_labels_may_update():
    routing = routing_for("sgtm", 2)
    assert touched_parts({0}, routing) == {"retain", "joint", "forget/spanish", "forget/biology"}
    assert touched_parts({1}, routing) == {"retain", "joint"}
    assert touched_parts({2}, routing) == {"joint", "forget/spanish"}
    assert touched_parts({2, 3}, routing) == {"joint", "forget/spanish", "forget/biology"}
    assert touched_parts({1, 3}, routing) == {"retain", "joint", "forget/biology"}


@pytest.mark.parametrize("rule", ROUTED_RULES)
def test_untouched_parts_have_no_gradient_and_touched_parts_have_one(rule):
    routing = routing_for(rule, 2)
    documents = random_documents(6)
    for label in range(1, 4):
        model = small_model(routing)
        batch = batch_of(documents, [[label] * len(document) for document in documents])
        accumulate(model, [batch], routing)
        touched = touched_parts({label}, routing)
        for name, parameter in model.named_parameters():
            if part_of(name) not in touched:
                assert parameter.grad is None, name
            else:
                assert parameter.grad is not None, name


N_ROWS, FROZEN = 10, torch.tensor([True, False, False, True, False, False, False, True, False, False])
"""Three of ten rows may not update a weight."""


def operations_of(compute):
    with FlopCounterMode(display=False) as counted:
        compute()
    return counted.get_total_flops()


@pytest.mark.parametrize("axis", [OUTPUT, INPUT])
def test_rows_that_may_not_update_a_weight_are_not_multiplied_for_it(axis):
    """Of a matrix in two pieces of 8 units each, on a CPU."""
    x, frozen = torch.randn(1, N_ROWS, 16, requires_grad=True), [False, FROZEN.view(1, -1, 1)]
    pieces = [torch.randn((8, 16) if axis == OUTPUT else (16, 8), requires_grad=True) for _ in frozen]
    y = routed_linear(x, pieces, frozen, axis, [], [])
    of_a_row = 2 * 16 * 8
    of_inputs, of_weights = 2 * N_ROWS * of_a_row, (N_ROWS + 7) * of_a_row
    assert operations_of(y.sum().backward) == of_inputs + of_weights


def test_rows_that_may_not_update_the_head_are_not_multiplied_for_it():
    D, V = 16, 40
    hidden, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((N_ROWS, D), (V, D), (V,)))
    given = hidden, weight, bias, FROZEN.unsqueeze(-1), [], torch.arange(N_ROWS), torch.ones(N_ROWS)
    of_logits, of_inputs, of_weights = (2 * n * V for n in (N_ROWS * D, N_ROWS * D, 7 * (D + 1)))
    assert operations_of(lambda: head_losses(*given)) == of_logits + of_inputs + of_weights


def test_a_norm_is_the_plain_one_where_rows_are_frozen():
    """With all its gradients; rows that are frozen and no numbers leave gain and shift alone."""
    norm, (x, away), frozen = Norm(24, "retain"), torch.randn(2, 1, N_ROWS, 24), FROZEN.view(1, -1, 1)
    gain, shift = (parameter["retain"] for parameter in (norm.weight, norm.bias))
    torch.nn.init.normal_(gain)
    torch.nn.init.normal_(shift)

    def plain(x):
        scale, offset = (torch.where(frozen, of.detach(), of) for of in (gain.expand_as(x), shift.expand_as(x)))
        return torch.nn.functional.layer_norm(x, (24,)) * scale + offset

    def routed(x):
        return norm(x, Route(freeze={"retain": frozen}))

    given = x.requires_grad_(), gain, shift
    found, expected = ([y, *torch.autograd.grad(y, given, away)] for y in (routed(x), plain(x)))
    torch.testing.assert_close(found, expected)
    broken = torch.where(frozen, torch.inf, x.detach())
    torch.testing.assert_close(torch.autograd.grad(routed(broken), given[1:], away), tuple(expected[2:]))
