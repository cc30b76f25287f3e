"""What one optimizer step moves: the claims about frozen parameters, weights and clipping."""

import copy
import dataclasses

import pytest
import torch

from excise.labels import forget_part, part_of, parts_of
from excise.model.gpt import compile_blocks
from excise.routing.route import PLAIN, single_route
from excise.train.loop import build_optimizer
from excise.train.run import TrainConfig
from excise.train.step import accumulate, clip_by_part, route_of
from tests.small import (
    ROUTED_RULES,
    SMALL,
    batch_of,
    documents_of_all_labels,
    random_documents,
    routing_for,
    small_model,
)


def batch_with(label):
    documents = random_documents(5, seed=label)
    return batch_of(documents, [[label] * len(document) for document in documents])


def after_some_steps(routing, **options):
    """A model and an optimizer whose moments are all alive."""
    model = small_model(routing)
    optimizer = build_optimizer(model, TrainConfig(learning_rate=1e-2, **options))
    for _ in range(2):
        accumulate(model, [batch_of(*documents_of_all_labels(routing))], routing)
        optimizer.step()
    return model, optimizer


def snapshot(model, optimizer, part):
    """Values and moments of all parameters in a part."""
    return {
        name: [parameter.detach().clone(), *(value.clone() for value in optimizer.state[parameter].values())]
        for name, parameter in model.named_parameters()
        if part_of(name) == part
    }


def identical(before, after):
    return all(torch.equal(a, b) for name in before for a, b in zip(before[name], after[name], strict=True))


@pytest.mark.parametrize("rule", ROUTED_RULES)
def test_forget_step_leaves_theta_retain_and_its_moments_bit_identical(rule):
    routing = routing_for(rule, 2)
    model, optimizer = after_some_steps(routing)
    before = snapshot(model, optimizer, "retain")
    module = snapshot(model, optimizer, forget_part("spanish"))
    accumulate(model, [batch_with(2)], routing)
    optimizer.step()
    assert before
    assert identical(before, snapshot(model, optimizer, "retain"))
    assert not identical(module, snapshot(model, optimizer, forget_part("spanish")))


@pytest.mark.parametrize("rule", ROUTED_RULES)
def test_retain_step_leaves_theta_forget_and_its_moments_bit_identical(rule):
    routing = routing_for(rule, 2)
    model, optimizer = after_some_steps(routing)
    before = [snapshot(model, optimizer, forget_part(domain)) for domain in routing.domains]
    accumulate(model, [batch_with(1)], routing)
    optimizer.step()
    assert all(before)
    for domain, module in zip(routing.domains, before, strict=True):
        assert identical(module, snapshot(model, optimizer, forget_part(domain)))


def test_data_of_one_domain_leaves_the_module_of_another_alone():
    routing = routing_for("sgtm", 2)
    model, optimizer = after_some_steps(routing)
    before = snapshot(model, optimizer, forget_part("biology"))
    accumulate(model, [batch_with(2), batch_with(2)], routing)
    optimizer.step()
    assert identical(before, snapshot(model, optimizer, forget_part("biology")))


def test_the_papers_optimizer_moves_frozen_weights_by_zero_gradients():
    routing = routing_for("sgtm")
    model, optimizer = after_some_steps(routing)
    before = snapshot(model, optimizer, "retain")
    accumulate(model, [batch_with(2)], routing, zero_instead=True)
    optimizer.step()
    assert not identical(before, snapshot(model, optimizer, "retain"))


@pytest.mark.parametrize("rule", ROUTED_RULES)
def test_micro_batches_add_up_to_the_mixed_batch(rule):
    routing = routing_for(rule, forget_weight=0.3)
    documents, labels = documents_of_all_labels(routing)
    mixed, apart = small_model(routing), small_model(routing)
    together = accumulate(mixed, [batch_of(documents, labels)], routing)
    by_label = [
        batch_of(
            [d for d, row in zip(documents, labels, strict=True) if row[0] == label],
            [r for r in labels if r[0] == label],
        )
        for label in range(3)
    ]
    separate = accumulate(apart, by_label, routing)
    assert together.n_predicted == separate.n_predicted
    assert together.mean == pytest.approx(separate.mean, rel=1e-5)
    for (name, a), b in zip(mixed.named_parameters(), apart.parameters(), strict=True):
        assert (a.grad - b.grad).norm() <= 1e-5 * b.grad.norm() + 1e-8, name


def test_a_mixed_batch_tells_the_loss_that_each_label_has_alone():
    routing = routing_for("sgtm")
    documents, labels = documents_of_all_labels(routing)
    mixed = accumulate(small_model(routing), [batch_of(documents, labels)], routing).by_label(routing.domains)
    for label, name in enumerate(("unlabeled", "retain", "spanish")):
        mine = [i for i, row in enumerate(labels) if row[0] == label]
        batch = batch_of([documents[i] for i in mine], [labels[i] for i in mine])
        assert mixed[name] == pytest.approx(accumulate(small_model(routing), [batch], routing).mean, rel=1e-5)


def test_forget_weight_scales_forget_gradients_and_not_the_divisor():
    batch = batch_with(2)
    gradients = []
    for weight in (1.0, 0.25):
        routing = routing_for("sgtm", forget_weight=weight)
        model = small_model(routing)
        loss = accumulate(model, [batch], routing)
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        assert loss.mean == pytest.approx(accumulate(small_model(routing), [batch], routing).mean)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], 0.25 * gradient)


@pytest.mark.parametrize("rule", [*ROUTED_RULES, "none"])
def test_forget_data_of_weight_0_leaves_everything_and_all_moments_alone(rule):
    routing = routing_for(rule, forget_weight=0.0)
    model, optimizer = after_some_steps(routing)
    before = [snapshot(model, optimizer, part) for part in parts_of(routing.modules)]
    accumulate(model, [batch_with(2)], routing)
    optimizer.step()
    assert any(before)
    for part, was in zip(parts_of(routing.modules), before, strict=True):
        assert identical(was, snapshot(model, optimizer, part))


def test_clipping_is_per_part():
    routing = routing_for("sgtm")
    batches = [batch_of(*documents_of_all_labels(routing))]
    model = small_model(routing)
    accumulate(model, batches, routing)
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    norms = {}
    for name, gradient in plain.items():
        norms[part_of(name)] = norms.get(part_of(name), 0) + float(gradient.square().sum())
    smallest = min(norms, key=norms.get)
    clip_by_part(model, 1.01 * norms[smallest] ** 0.5)
    for name, parameter in model.named_parameters():
        if part_of(name) == smallest:
            assert torch.equal(parameter.grad, plain[name]), "the part below the bound keeps its gradient"
        else:
            assert parameter.grad.norm() < plain[name].norm()


def test_modules_learn_at_a_rate_of_their_own():
    model = small_model(routing_for("sgtm", 2))
    optimizer = build_optimizer(model, TrainConfig(learning_rate=0.01, module_rate=0.25))
    rates = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        assert rates[id(parameter)] == (0.0025 if part_of(name).startswith("forget/") else 0.01), name


@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
@pytest.mark.parametrize("norms", ["joint", "retain"])
@pytest.mark.parametrize("rule", ["none", "sgtm", "gradient_routing", "activation_masking"])
def test_compiled_blocks_give_the_same_gradients(rule, norms):
    """In one graph each, without a break, whether labels are mixed or not; traced here, and compiled on a GPU."""
    torch._dynamo.reset()
    routing = routing_for(rule, norms=norms)
    documents, labels = documents_of_all_labels(routing)
    of_one_label = ([[label] * len(document) for document in documents] for label in range(3))
    for batch in (batch_of(documents, of) for of in (labels, *of_one_label)):
        gradients = []
        for compiled in (False, True):
            model = small_model(routing)
            if compiled:
                compile_blocks(model, backend="aot_eager")
            accumulate(model, [batch], routing)
            gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        assert gradients[0].keys() == gradients[1].keys()
        for name, expected in gradients[0].items():
            assert (gradients[1][name] - expected).norm() <= 1e-5 * expected.norm() + 1e-8, name


@pytest.mark.filterwarnings("ignore")
def test_each_kind_of_micro_batch_is_compiled_once_for_its_shape():
    """Whatever was evaluated in between, and however large the batches of other models are."""
    torch._dynamo.reset()
    routing = routing_for("sgtm")
    sizes = []

    def backend(graph, inputs):
        sizes.append([size for x in inputs if isinstance(x, torch.Tensor) for size in x.shape])
        return graph.forward

    def batches(n):
        documents = random_documents(n, longest=20)
        return [
            batch_of(documents, [[labels[i % len(labels)]] * len(d) for i, d in enumerate(documents)])
            for labels in ([0, 1, 2], [1], [2])
        ]

    found = []
    for n in (6, 6, 20, 6):
        model = small_model(routing)
        compile_blocks(model, backend)
        for _ in range(2):
            for batch in batches(n):
                accumulate(model, [batch], routing)
            with torch.no_grad():
                model.hidden(**batches(2)[0].inputs)
        found.append(len(sizes))
    assert found[0] <= 3 * 3, "three kinds, and for each both reaches of attention and the last norm"
    assert found == [found[0], found[0], 2 * found[0], 2 * found[0]]
    assert all(isinstance(size, int) for of_graph in sizes for size in of_graph)


@pytest.mark.filterwarnings("ignore")
def test_a_copy_of_a_compiled_model_computes_with_its_own_parameters():
    """As attacks and unlearning copy the model that a training returns."""
    torch._dynamo.reset()
    routing = routing_for("sgtm")
    batch = batch_of(*documents_of_all_labels(routing))
    plain, model = small_model(routing), small_model(routing)
    compile_blocks(model, backend="aot_eager")
    accumulate(model, [batch], routing)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, same in zip(plain.parameters(), copied.parameters(), strict=True):
            parameter *= 0.5
            same *= 0.5
        torch.testing.assert_close(copied.hidden(**batch.inputs), plain.hidden(**batch.inputs))
    model.zero_grad()
    accumulate(plain, [batch], routing)
    accumulate(copied, [batch], routing)
    for (name, expected), found in zip(plain.named_parameters(), copied.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-7, msg=name)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore")
def test_a_process_compiles_as_many_models_as_it_trains():
    torch._dynamo.reset()
    graphs, routing = [], routing_for("sgtm")

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    batches = [batch_of(random_documents(3), [[label] * len(d) for d in random_documents(3)]) for label in range(3)]
    for d_mlp in range(6, 42):
        model = small_model(routing, dataclasses.replace(SMALL, n_layers=2, d_mlp=d_mlp))
        compile_blocks(model, backend)
        accumulate(model, batches, routing)
    assert len(graphs) > 36 * 6, "for each, three kinds of micro-batch in two reaches of attention"


def test_where_no_gradient_is_wanted_nothing_is_compiled():
    """As when a run is evaluated while it trains, in batches of many shapes."""

    def backend(graph, inputs):
        raise AssertionError("compiled")

    routing = routing_for("sgtm")
    batch = batch_of(*documents_of_all_labels(routing))
    model, plain = small_model(routing), small_model(routing)
    compile_blocks(model, backend)
    with torch.no_grad():
        for route in (PLAIN, route_of(batch, routing.effects), *map(single_route, routing.effects)):
            hidden = model.hidden(**batch.inputs, route=route)
            torch.testing.assert_close(hidden, plain.hidden(**batch.inputs, route=route))
