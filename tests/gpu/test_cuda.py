"""The paths that only a GPU takes, against the plain ones."""

import gc
import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from excise.labels import part_of
from excise.model.attention import attend, masked_pattern, pattern_of
from excise.model.gpt import compile_blocks
from excise.routing import head
from excise.routing.kernels import HALVES, HAS_KERNELS
from excise.routing.precision import HalfStream
from excise.routing.route import PLAIN
from excise.routing.split import Embedding
from excise.train.loop import build_optimizer
from excise.train.recorded import RecordedPasses
from excise.train.run import TrainConfig
from excise.train.step import Passes, accumulate, accumulate_passes, clip_by_part
from tests.routing.fused import ALL, NONE, SOME_ROWS, norm_both_ways, units_both_ways
from tests.small import SMALL, batch_of, documents_of_all_labels, random_documents, routing_for, small_model
from tests.train.test_step import identical, snapshot

if HAS_KERNELS:
    from excise.routing.head_kernels import losses_and_gradients_in_place, weigh

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # What torch and its compiler warn of differs from version to version; such a warning, as an error, would end compilation.
    pytest.mark.filterwarnings("ignore:::torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
OWN = {"spanish": [3, 5, *range(17, 31)]}


def packed_batch(longest, context):
    documents = random_documents(40, longest=longest)
    return batch_of(documents, [[0] * len(document) for document in documents], context).to(torch.device("cuda"))


@pytest.mark.parametrize(("longest", "context", "window"), [(50, 200, 7), (332, 333, 200)], ids=["short", "long"])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("head_size", [1, 4, 8, 16, 24, 32, 64, 128])
def test_the_attention_kernels_are_masked_attention(head_size, local, longest, context, window):
    """Of short documents, and of long ones, whose inner blocks are met without a mask."""
    batch = packed_batch(longest, context)
    masks, spans = masked_pattern(batch.documents, window), pattern_of(batch.documents, window)
    shape = (*batch.tokens.shape, 5, 3, head_size)
    generator = torch.Generator("cuda").manual_seed(0)
    exact = torch.randn(shape, device="cuda", generator=generator).requires_grad_()
    half = exact.detach().to(HALVES[0]).requires_grad_()
    expected, found = attend(exact, masks, local=local), attend(half, spans, local=local)
    away = torch.randn(expected.shape, device="cuda", generator=generator)
    expected.backward(away)
    found.backward(away.to(HALVES[0]))
    assert (found - expected).norm() < 0.01 * expected.norm()
    assert (half.grad - exact.grad).norm() < 0.02 * exact.grad.norm()


@pytest.mark.parametrize("d_model", [24, 128, 160])
@pytest.mark.parametrize("has_bias", [False, True])
def test_losses_without_gradient_are_cross_entropy(d_model, has_bias):
    generator, (N, V) = torch.Generator("cuda").manual_seed(0), (300, 5003)
    hidden, weight = (torch.randn(n, d_model, device="cuda", generator=generator) / 4 for n in (N, V))
    bias, shift = torch.randn(2, V, device="cuda", generator=generator)
    targets = torch.randint(0, V, (N,), device="cuda", generator=generator)
    logits = hidden.bfloat16().double() @ weight.bfloat16().double().T + (bias if has_bias else 0)
    expected = [cross_entropy(x, targets, reduction="none") for x in (logits, logits + shift)]
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        found = head.losses_without_gradient(hidden, weight, bias if has_bias else None, targets, [None, shift])
    torch.testing.assert_close(found.double(), torch.stack(expected), rtol=0, atol=0.1)
    assert (found.double() - torch.stack(expected)).abs().mean() < 0.01


def test_the_kernel_of_a_wide_head_is_cross_entropy():
    """From the same logits in half precision; what lies beyond the vocabulary gets no gradient."""
    generator, (N, V, W) = torch.Generator("cuda").manual_seed(0), (300, 5003, 5056)
    logits = (4 * torch.randn(N, W, device="cuda", generator=generator)).to(HALVES[0])
    targets = torch.randint(0, V, (N,), device="cuda", generator=generator)
    exact = logits[:, :V].float().requires_grad_()
    expected = cross_entropy(exact, targets, reduction="none")
    expected.sum().backward()
    losses = torch.empty(N, device="cuda")
    gradient, scale = losses_and_gradients_in_place(logits, targets, V, losses)
    gradient = gradient * scale
    assert (losses - expected).abs().max() < 0.005 * expected.max()
    assert (gradient[:, :V] - exact.grad).norm() < 0.02 * exact.grad.norm()
    assert not gradient[:, V:].any()


def assert_close_in_half_precision(found, expected):
    for ours, exact in zip(found, expected, strict=True):
        assert (ours is None) == (exact is None)
        if exact is not None:
            assert (ours.float() - exact.float()).norm() < 0.01 * exact.float().norm()


@pytest.mark.parametrize("still", [(NONE, NONE), (SOME_ROWS, ALL), (ALL, SOME_ROWS)])
@pytest.mark.parametrize("d_model", [24, 128, 512, 768, 1024])
@pytest.mark.parametrize("stream", [torch.float32, HALVES[0]])
def test_an_addition_with_its_norm_is_the_plain_one(d_model, still, stream):
    assert_close_in_half_precision(*norm_both_ways((3, 701, d_model), *still, "cuda", HALVES[0], stream))


@pytest.mark.parametrize("runs", [([], []), ([(0, 64)], [(64, 400)]), ([(0, 9), (9, 120)], [(200, 400), (300, 400)])])
@pytest.mark.parametrize("n_units", [400, 512, 1984])
def test_units_with_their_bias_are_the_plain_ones(n_units, runs):
    assert_close_in_half_precision(*units_both_ways((3, 701, n_units), *runs, "cuda", HALVES[0]))


@pytest.mark.parametrize("dtype", HALVES)
def test_rows_times_their_weights_are_those(dtype):
    rows, weights = torch.randn(701, 200, device="cuda").to(dtype), torch.rand(701, 1, device="cuda")
    out = torch.zeros(701, 208, device="cuda", dtype=dtype)
    weigh(rows, weights, out[:, :200])
    assert torch.equal(out[:, :200], (rows * weights).to(dtype))
    assert not out[:, 200:].any()


def assert_a_step_in_half_precision_is_the_exact_one(exact, fast, batch, routing, precision=torch.autocast):
    accumulate(exact, [batch], routing)
    accumulate(fast, [batch], routing, precision("cuda", torch.bfloat16))
    for (name, expected), found in zip(exact.named_parameters(), fast.parameters(), strict=True):
        assert (expected.grad is None) == (found.grad is None), name
        if expected.grad is not None:
            assert (found.grad - expected.grad).norm() <= 0.03 * expected.grad.norm() + 1e-6, name


@pytest.mark.parametrize("precision", [torch.autocast, HalfStream])
@pytest.mark.parametrize(("rule", "n_domains"), [("sgtm", 1), ("sgtm", 2), ("gradient_routing", 1), ("none", 1)])
def test_a_compiled_step_in_half_precision_is_the_plain_step(rule, n_domains, precision):
    """Kernels, compiled blocks and the padded vocabulary together, within the precision of bfloat16."""
    routing, device = routing_for(rule, n_domains), torch.device("cuda")
    batch = batch_of(*documents_of_all_labels(routing)).to(device)
    exact, fast = small_model(routing).to(device), small_model(routing).to(device)
    compile_blocks(fast)
    assert_a_step_in_half_precision_is_the_exact_one(exact, fast, batch, routing, precision)


WIDE = replace(SMALL, vocabulary_size=1003, d_model=200, n_heads=8, d_mlp=100)


def wide_model(routing, own=None):
    """A model whose head writes its logits, with weights so small that half precision says something about its gradients."""
    model = small_model(routing, WIDE, own=own).cuda()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 0.2
    return model


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [1], [2]], ids=str)
def test_a_step_of_a_wide_model_in_half_precision_is_the_plain_step(labels, compiled):
    """With vectors of tokens that only some rows see, and embeddings and norms that only some update."""
    routing = routing_for("sgtm", 2, embeddings="retain", norms="retain")
    documents = random_documents(9)
    batch = batch_of(documents, [[labels[i % len(labels)]] * len(d) for i, d in enumerate(documents)])
    exact, fast = (wide_model(routing, {**OWN, "biology": [0, 1, 40]}) for _ in range(2))
    if compiled:
        compile_blocks(fast)
    assert_a_step_in_half_precision_is_the_exact_one(exact, fast, batch.to(torch.device("cuda")), routing)


@pytest.mark.parametrize("config", [SMALL, WIDE], ids=["narrow", "wide"])
def test_a_loss_that_is_no_number_is_reported_as_such(config):
    """So that a run that has come to nothing ends."""
    routing = routing_for("none")
    model = small_model(routing, config).cuda()
    with torch.no_grad():
        model.norm.bias[model.norm.part][3] = math.nan
    loss = accumulate(model, [labelled_batch([0])], routing, torch.autocast("cuda", torch.bfloat16))
    assert not math.isfinite(loss.mean)


@pytest.mark.parametrize("half", [False, True])
def test_compiled_blocks_are_fused_in_half_precision_alone(half):
    routing = routing_for("sgtm")
    batch, model = batch_of(*documents_of_all_labels(routing)).to(torch.device("cuda")), small_model(routing).cuda()
    compile_blocks(model)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        accumulate(model, [batch], routing, torch.autocast("cuda", torch.bfloat16, enabled=half))
        torch.cuda.synchronize()
    ours = {event.key: event.count for event in seen.key_averages() if event.key in ("_norm_kernel", "_units_kernel")}
    assert ours == ({"_norm_kernel": 2 * SMALL.n_layers, "_units_kernel": SMALL.n_layers} if half else {})


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


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 1, 2, 3], [1], [2]], ids=str)
def test_own_tokens_in_half_precision_are_those_of_the_plain_step(labels):
    routing, device = routing_for("sgtm", 2, embeddings="retain"), torch.device("cuda")
    documents = random_documents(9)
    batch = batch_of(documents, [[labels[i % len(labels)]] * len(d) for i, d in enumerate(documents)]).to(device)
    own = {**OWN, "biology": [0, 1, 40]}
    exact, fast = (small_model(routing, own=own).to(device) for _ in range(2))
    assert_a_step_in_half_precision_is_the_exact_one(exact, fast, batch, routing)


def test_forget_data_alone_leaves_retain_parameters_without_a_gradient():
    routing = routing_for("sgtm", embeddings="retain")
    documents = random_documents(6)
    batch = batch_of(documents, [[2] * len(document) for document in documents]).to(torch.device("cuda"))
    model = small_model(routing, SMALL).cuda()
    accumulate(model, [batch], routing, torch.autocast("cuda", torch.bfloat16))
    assert all(p.grad is None for name, p in model.named_parameters() if part_of(name) == "retain")
    assert all(p.grad is not None for name, p in model.named_parameters() if part_of(name) == "forget/spanish")


def labelled_batch(labels, n=8):
    """Up to eight documents with these labels in turn; whatever the labels, eight have one shape."""
    documents = random_documents(8, longest=20)[:n]
    token_labels = [[labels[i % len(labels)]] * len(document) for i, document in enumerate(documents)]
    return batch_of(documents, token_labels).to(torch.device("cuda"))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("rule", "own"), [("sgtm", {}), ("sgtm", OWN), ("none", {})])
def test_recorded_passes_leave_the_gradients_of_plain_ones(rule, own, compiled):
    """Over steps of several micro-batches: of all labels, of one label, with labels inside a document, and of another shape;
    with weights that change from step to step. Bit for bit; compiled, a later graph for other shapes may round otherwise."""
    routing, device = routing_for(rule), torch.device("cuda")
    documents = random_documents(8, longest=20)
    inside = batch_of(documents, [[0] * 2 + [2] * (len(document) - 2) for document in documents]).to(device)
    steps = [
        [labelled_batch([0, 1, 2]), labelled_batch([2])],
        [labelled_batch([1]), labelled_batch([2, 0])],
        [labelled_batch([2]), labelled_batch([2], n=3)],
        [inside, labelled_batch([1, 0])],
    ]
    plain, fast = (small_model(routing, own=own).to(device) for _ in range(2))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in (plain, fast)]
    if compiled:
        compile_blocks(plain)
        compile_blocks(fast)
    precision = torch.autocast("cuda", torch.bfloat16)
    passes = RecordedPasses(Passes(fast, routing, precision), tuple(steps[0][0].tokens.shape))
    for batches in steps:
        expected = accumulate(plain, batches, routing, precision)
        found = accumulate_passes(passes, batches)
        torch.testing.assert_close(found.total, expected.total, rtol=1e-3 if compiled else 0.0, atol=0.0)
        for (name, p), q in zip(plain.named_parameters(), fast.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            if p.grad is not None:
                assert (p.grad - q.grad).norm() <= (0.02 if compiled else 0.0) * p.grad.norm(), name
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():  # what differs by rounding would be far apart after a few steps
            for p, q in zip(plain.parameters(), fast.parameters(), strict=True):
                q.copy_(p)
    assert len(passes.recordings) == {"sgtm": 3, "none": 1}[rule]


def test_the_gradients_of_a_step_of_one_pass_are_neither_copied_nor_added_to_anything():
    model, passes, _ = after_a_recorded_step()
    for batch in (labelled_batch([0, 1, 2]), labelled_batch([2])):
        accumulate_passes(passes, [batch])
        gradients = passes.recordings[passes._kind(batch)].gradients
        assert gradients
        assert all(p.grad is gradients[p] for p in model.parameters() if p.grad is not None)


def every_kind():
    """A micro-batch of every kind that is recorded."""
    return [labelled_batch(labels) for labels in ([0, 1, 2], [0], [1], [2])]


def after_a_recorded_step(compiled=False):
    """A model, its recorded passes and its optimizer, after a step with every kind of micro-batch."""
    routing, batches = routing_for("sgtm"), every_kind()
    model = small_model(routing, own=OWN).cuda()
    if compiled:
        compile_blocks(model)
    plain = Passes(model, routing, torch.autocast("cuda", torch.bfloat16))
    passes = RecordedPasses(plain, tuple(batches[0].tokens.shape))
    optimizer = build_optimizer(model, TrainConfig(learning_rate=1e-2))
    accumulate_passes(passes, batches)
    optimizer.step()
    assert len(passes.recordings) == len(batches)
    return model, passes, optimizer


def test_recordings_of_all_kinds_take_little_more_memory_than_one():
    """Also while they are made."""
    documents, routing = random_documents(2000, longest=20), routing_for("sgtm")

    def taken(kinds):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        batches = [
            batch_of(documents, [[label] * len(d) for d in documents]).to(torch.device("cuda")) for label in kinds
        ]
        passes = RecordedPasses(Passes(small_model(routing).cuda(), routing, None), tuple(batches[0].tokens.shape))
        accumulate_passes(passes, batches)
        assert len(passes.recordings) == len(kinds)
        return torch.cuda.max_memory_reserved() - before

    one = max(taken([label]) for label in (0, 1, 2))
    assert taken([0, 1, 2]) < 1.5 * one
    assert taken([1, 0, 2]) < 1.5 * one


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_training_step_with_recorded_passes_never_waits_for_the_gpu():
    model, passes, optimizer = after_a_recorded_step()
    batches = every_kind()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = accumulate_passes(passes, batches)
        clip_by_part(model, 1.0)
        optimizer.step()
        with pytest.raises(RuntimeError, match="synchronizing"):  # or nothing was watching
            float(loss.total)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("label", "still", "moved"), [(2, "retain", "forget/spanish"), (1, "forget/spanish", "retain")]
)
def test_a_recorded_step_leaves_a_part_and_its_moments_alone_that_its_data_may_not_touch(label, still, moved, compiled):
    """Bit for bit, though the recordings have a gradient for every parameter, and the part has moments."""
    model, passes, optimizer = after_a_recorded_step(compiled)
    before, others = snapshot(model, optimizer, still), snapshot(model, optimizer, moved)
    assert before
    assert all(moment.any() for _, *moments in before.values() for moment in moments)
    accumulate_passes(passes, [labelled_batch([label]), labelled_batch([label])])
    optimizer.step()
    assert identical(before, snapshot(model, optimizer, still))
    assert not identical(others, snapshot(model, optimizer, moved))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("n", [200, 256])
@pytest.mark.parametrize("d_model", [24, 128, 160])
def test_a_head_is_cross_entropy(d_model, n, has_bias, monkeypatch):
    """Narrow, without logits, and wide, over several chunks, the last one short; of rows and tokens in whole tiles or not."""
    monkeypatch.setattr(head, "CHUNK", {"cuda": 64})
    generator, V = torch.Generator("cuda").manual_seed(0), 2 * n + 128
    hidden, weight = (torch.randn(k, d_model, device="cuda", generator=generator).requires_grad_() for k in (n, V))
    bias = torch.randn(V, device="cuda", generator=generator).requires_grad_() if has_bias else None
    targets = torch.randint(-1, V, (n,), device="cuda", generator=generator)
    weights = torch.rand(n, device="cuda", generator=generator)
    given = [hidden, weight] if bias is None else [hidden, weight, bias]
    logits = torch.nn.functional.linear(hidden.bfloat16().float(), weight.bfloat16().float(), bias)
    expected = cross_entropy(logits, targets, ignore_index=-1, reduction="none") @ weights
    with torch.autocast("cuda", torch.bfloat16):
        found, _ = head.head_losses(hidden, weight, bias, False, [], targets, weights)
    assert (found - expected).abs() < 0.01 * expected
    for a, b in zip(torch.autograd.grad(found, given), torch.autograd.grad(expected, given), strict=True):
        assert (a - b).norm() < 0.02 * b.norm()


@pytest.mark.parametrize("d_model", [24, 160])
def test_a_head_with_vectors_that_some_rows_see_adds_up_chunks(monkeypatch, d_model):
    """Narrow and wide; of two modules whose tokens reach beyond what one program has, the last chunk short."""
    monkeypatch.setattr(head, "CHUNK", {"cuda": 64})
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = (200, d_model), (2200, d_model), (2200,), (40, d_model), (1060, d_model)
    std = d_model**-0.25  # or logits would be so large that half precision rounds them to an eighth
    given = [(std * torch.randn(shape, device="cuda", generator=generator)).requires_grad_() for shape in shapes]
    hidden, weight, bias, *vectors = given
    targets = torch.randint(-1, 2200, (200,), device="cuda", generator=generator)
    unseen = [torch.rand(200, 1, device="cuda", generator=generator) < 0.5 for _ in vectors]
    places = slice(0, 40), slice(40, 1100)
    added = [head.AddedRows(*of) for of in zip(places, vectors, unseen, strict=True)]
    own = torch.cat([~rows * (hidden @ of.T) for of, rows in zip(vectors, unseen, strict=True)], -1)
    logits = torch.nn.functional.linear(hidden, weight, bias) + torch.nn.functional.pad(own, (0, 1100))
    expected = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")
    with torch.autocast("cuda", torch.bfloat16):
        found, _ = head.head_losses(hidden, weight, bias, False, added, targets, torch.ones(200, device="cuda"))
    assert (found - expected).abs() < 0.01 * expected
    for a, b in zip(torch.autograd.grad(found, given), torch.autograd.grad(expected, given), strict=True):
        assert (a - b).norm() < 0.02 * b.norm()


def test_the_gradient_of_positions_is_the_same_every_time():
    positions = Embedding(torch.randn(512, 128), "joint").to("cuda")
    ids = torch.arange(65536, device="cuda").view(128, 512) % 512
    gradient = torch.randn(128, 512, 128, device="cuda")
    exact = gradient.double().sum(0)
    found = []
    for _ in range(6):
        positions.zero_grad()
        positions(ids, PLAIN).backward(gradient)
        found.append(positions.weight["joint"].grad.clone())
    torch.testing.assert_close(found[0].double(), exact, rtol=0, atol=1e-3)
    assert all(torch.equal(found[0], other) for other in found[1:])
