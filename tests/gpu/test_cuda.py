"""The paths that only a GPU takes, against the plain ones."""

import pytest
import torch

from excise.labels import part_of
from excise.model.attention import HALVES, Pattern, attend, masked_pattern
from excise.train.step import accumulate
from tests.small import SMALL, batch_of, documents_of_all_labels, random_documents, routing_for, small_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def packed_batch(context=64):
    documents = random_documents(40, longest=50)
    return batch_of(documents, [[0] * len(document) for document in documents], context).to(torch.device("cuda"))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("head_size", [4, 8, 16, 24, 32, 64])
def test_flash_attention_is_masked_attention(head_size, local):
    batch = packed_batch()
    masks = masked_pattern(batch.documents, batch.boundaries, window=7)
    shape = (*batch.tokens.shape, 3, 5, head_size)
    generator = torch.Generator("cuda").manual_seed(0)
    exact = torch.randn(shape, device="cuda", generator=generator).requires_grad_()
    half = exact.detach().to(HALVES[0]).requires_grad_()
    expected = attend(*exact.unbind(2), masks, local=local)
    found = attend(*half.unbind(2), Pattern(batch.boundaries, window=7), local=local)
    away = torch.randn(expected.shape, device="cuda", generator=generator)
    expected.backward(away)
    found.backward(away.to(HALVES[0]))
    assert (found - expected).norm() < 0.01 * expected.norm()
    assert (half.grad - exact.grad).norm() < 0.02 * exact.grad.norm()


@pytest.mark.parametrize("rule", ["sgtm", "gradient_routing", "none"])
def test_a_step_on_the_gpu_is_a_step_on_the_cpu(rule):
    """In float32; the vocabulary is padded there and not here."""
    routing = routing_for(rule)
    batch = batch_of(*documents_of_all_labels(routing))
    gradients = {}
    for device in ("cpu", "cuda"):
        model = small_model(routing).to(device)
        loss = accumulate(model, [batch.to(torch.device(device))], routing)
        gradients[device] = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
        gradients[device]["loss"] = loss.total.cpu()
    assert gradients["cpu"].keys() == gradients["cuda"].keys()
    for name, expected in gradients["cpu"].items():
        assert (gradients["cuda"][name] - expected).norm() <= 1e-4 * expected.norm() + 1e-7, name


def test_forget_data_alone_leaves_retain_parameters_without_a_gradient():
    routing = routing_for("sgtm", embeddings="retain")
    documents = random_documents(6)
    batch = batch_of(documents, [[2] * len(document) for document in documents]).to(torch.device("cuda"))
    model = small_model(routing, SMALL).cuda()
    accumulate(model, [batch], routing, torch.autocast("cuda", torch.bfloat16))
    assert all(p.grad is None for name, p in model.named_parameters() if part_of(name) == "retain")
    assert all(p.grad is not None for name, p in model.named_parameters() if part_of(name) == "forget/spanish")
