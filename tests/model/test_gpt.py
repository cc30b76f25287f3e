"""The model: the paper's sizes, GPT-Neo's logits, and initial values that no method changes."""

import math

import pytest
import torch

from excise.data.packing import Corpus, collate, truncate
from excise.labels import part_of
from excise.model import attention
from excise.model.attention import _blocks, attend, masked_pattern, pattern_of
from excise.model.gpt import GPT, GPTConfig, n_parameters
from excise.recipes.paper import TINYSTORIES, WIKIPEDIA
from excise.routing.head import CHUNK, MULTIPLE, head_losses
from excise.routing.partition import partition
from excise.routing.precision import HalfStream
from excise.routing.route import PLAIN
from excise.routing.rules import RULES
from excise.routing.split import Embedding
from tests.reference import full, naive_losses
from tests.routing.paper import effect_of
from tests.small import ROUTED_RULES, SMALL, batch_of, random_documents, routing_for, small_model

PAPER = {
    **{("tinystories", name): size for name, size in {"8m": 7736, "18m": 17781, "34m": 33732, "64m": 63855}.items()},
    **{
        ("wikipedia", name): size for name, size in {"34m": 33929, "64m": 64117, "125m": 124462, "254m": 254054}.items()
    },
}


@pytest.mark.parametrize(("table", "name"), PAPER)
def test_parameter_counts_are_the_papers(table, name):
    config = {"tinystories": TINYSTORIES, "wikipedia": WIKIPEDIA}[table][name]
    with torch.device("meta"):
        count = meta_count(config)
    assert count // 1000 == PAPER[table, name]


def meta_count(config: GPTConfig) -> int:
    """Blocks are alike, so two small models tell the size of a large one without building it."""
    one, two = (
        n_parameters(GPT(GPTConfig(**{**vars(config), "n_layers": n, "vocabulary_size": 1, "context": 1}), seed=0))
        for n in (1, 2)
    )
    rest = (config.vocabulary_size - 1) * (config.d_model + 1) + (config.context - 1) * config.d_model
    return one + (config.n_layers - 1) * (two - one) + rest


def gpt_neo(config: GPTConfig, model: GPT):
    transformers = pytest.importorskip("transformers")
    stock = transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(
            vocab_size=config.vocabulary_size,
            max_position_embeddings=config.context,
            hidden_size=config.d_model,
            num_layers=config.n_layers,
            num_heads=config.n_heads,
            intermediate_size=config.d_mlp,
            window_size=config.window,
            attention_types=[[["global", "local"], config.n_layers // 2]],
            attention_dropout=0.0,
            embed_dropout=0.0,
            resid_dropout=0.0,
        )
    ).eval()
    K = config.head_size
    state = {
        "transformer.wte.weight": full(model.tokens.weight),
        "transformer.wpe.weight": full(model.positions.weight),
    }
    for i, block in enumerate(model.blocks):
        to = f"transformer.h.{i}"
        qkv = full(block.attention.qkv.weight).view(config.n_heads, 3, K, config.d_model)
        for j, name in enumerate("qkv"):
            state[f"{to}.attn.attention.{name}_proj.weight"] = qkv[:, j].reshape(-1, config.d_model)
        state[f"{to}.attn.attention.out_proj.weight"] = full(block.attention.out.weight, 1)
        state[f"{to}.attn.attention.out_proj.bias"] = full(block.attention.out.bias)
        state[f"{to}.mlp.c_fc.weight"], state[f"{to}.mlp.c_fc.bias"] = (
            full(block.mlp.up.weight),
            full(block.mlp.up.bias),
        )
        state[f"{to}.mlp.c_proj.weight"] = full(block.mlp.down.weight, 1)
        state[f"{to}.mlp.c_proj.bias"] = full(block.mlp.down.bias)
        for ours, theirs in ((block.norm_1, "ln_1"), (block.norm_2, "ln_2")):
            state[f"{to}.{theirs}.weight"], state[f"{to}.{theirs}.bias"] = full(ours.weight), full(ours.bias)
    state["transformer.ln_f.weight"], state["transformer.ln_f.bias"] = full(model.norm.weight), full(model.norm.bias)
    missing, unexpected = stock.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("lm_head" in name or "bias" in name or "mask" in name for name in missing)
    return stock


def test_logits_are_those_of_gpt_neo():
    config = GPTConfig(**{**vars(SMALL), "n_layers": 4, "output_bias": False})
    model = small_model(routing_for("sgtm"), config)
    tokens = torch.randint(0, config.vocabulary_size, (3, config.context))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), gpt_neo(config, model)(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_initial_values_depend_on_neither_rule_nor_partition(rule):
    plain = GPT(SMALL, seed=3)
    for n_domains in (1, 2):
        routing = routing_for(rule, n_domains, embeddings="joint")
        model = GPT(SMALL, partition(routing, n_layers=3, n_heads=8, d_mlp=20), seed=3)
        for a, b in zip(plain.blocks, model.blocks, strict=True):
            assert torch.equal(full(a.attention.qkv.weight), full(b.attention.qkv.weight))
            assert torch.equal(full(a.attention.out.weight, 1), full(b.attention.out.weight, 1))
            assert torch.equal(full(a.mlp.up.weight), full(b.mlp.up.weight))
            assert torch.equal(full(a.mlp.down.weight, 1), full(b.mlp.down.weight, 1))
        assert torch.equal(full(plain.tokens.weight), full(model.tokens.weight))


@pytest.mark.parametrize("rule", ROUTED_RULES)
def test_untrained_split_model_is_the_unsplit_model(rule):
    routing = routing_for(rule, 2)
    split = GPT(SMALL, partition(routing, n_layers=3, n_heads=8, d_mlp=20), seed=3)
    tokens = torch.randint(0, SMALL.vocabulary_size, (2, SMALL.context))
    assert torch.equal(split(tokens), GPT(SMALL, seed=3)(tokens))


def test_other_seeds_give_other_values():
    assert not torch.equal(full(GPT(SMALL, seed=0).tokens.weight), full(GPT(SMALL, seed=1).tokens.weight))


def test_packed_losses_are_those_of_each_document_alone():
    model = small_model(routing_for("none"))
    documents = random_documents(9)
    batch = batch_of(documents, [[0] * len(document) for document in documents])
    assert len(batch.tokens) < len(documents), "several documents should share a row"
    hidden = model.hidden(**batch.inputs)
    _, losses = model.losses(hidden, batch.targets, torch.ones(batch.targets.shape))
    for number, document in enumerate(documents):
        live = torch.ones(len(document) - 1, dtype=torch.bool)
        alone = naive_losses(model, document, [effect_of(routing_for("none"), 0)] * len(live), live)
        torch.testing.assert_close(losses[batch.documents == number], alone, rtol=1e-5, atol=1e-5)


def test_packed_and_padded_rows_give_every_document_the_same_losses():
    model = small_model(routing_for("none"))
    documents = random_documents(9)
    corpus = Corpus.of(documents, [0] * len(documents))
    pieces = truncate(corpus, SMALL.context)
    padded = collate(corpus, pieces, [[i] for i in range(len(documents))], SMALL.context)
    losses = []
    for batch in (batch_of(documents, [[0] * len(document) for document in documents]), padded):
        hidden = model.hidden(**batch.inputs)
        _, rows = model.losses(hidden, batch.targets, torch.ones(batch.targets.shape))
        losses.append([rows[batch.documents == number] for number in range(len(documents))])
    for packed, alone in zip(*losses, strict=True):
        torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("multiple", [1, 64])
def test_losses_in_chunks_are_the_cross_entropy_of_the_logits(monkeypatch, multiple):
    """Whether the vocabulary is padded, as on a GPU, or not."""
    monkeypatch.setitem(CHUNK, "cpu", 7)
    monkeypatch.setitem(MULTIPLE, "cpu", multiple)
    model = small_model(routing_for("none"))
    documents = random_documents(9)
    batch = batch_of(documents, [[0] * len(document) for document in documents])
    weights = torch.rand(batch.targets.shape)
    hidden = model.hidden(**batch.inputs)
    total, _ = model.losses(hidden, batch.targets, weights)
    logits = model.logits(hidden)
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
    expected = (plain.view_as(weights) * weights).sum()
    torch.testing.assert_close(total, expected)
    parameters = list(model.parameters())
    for a, b in zip(
        torch.autograd.grad(total, parameters, retain_graph=True),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        assert (a - b).norm() <= 1e-5 * b.norm()
    with torch.no_grad():
        torch.testing.assert_close(model.losses(hidden, batch.targets, weights)[0], expected)
        torch.testing.assert_close(model.logits(hidden), logits)


def test_a_head_that_is_sure_of_itself_has_the_gradients_of_float32_in_bfloat16():
    generator, (N, V, D) = torch.Generator().manual_seed(0), (200, 500, 64)
    weight = torch.randn(V, D, generator=generator).requires_grad_()
    targets = torch.randint(0, V, (N,), generator=generator)
    hidden = (weight.detach()[targets] * 0.2).requires_grad_()
    found = []
    for low in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            total, losses = head_losses(hidden, weight, None, False, [], targets, torch.ones(N))
        found.append((losses, *torch.autograd.grad(total, (hidden, weight))))
    assert found[0][0].mean() < 0.05, "sure"
    for exact, rounded in zip(*found, strict=True):
        assert (rounded - exact).norm() < 0.02 * exact.norm()


def test_spans_say_what_masks_say():
    documents = random_documents(9)
    batch = batch_of(documents, [[0] * len(document) for document in documents])
    masks, spans = masked_pattern(batch.documents, window=3), pattern_of(batch.documents, window=3)
    for mask, span in ((masks.everywhere, spans.everywhere), (masks.nearby, spans.nearby)):
        assert torch.equal(span.first.long(), mask[:, 0].int().argmax(-1))
        seen_by = mask[:, 0].transpose(-1, -2).flip(-1)  # from the last position that sees each to the first
        assert torch.equal(span.last.long(), mask.shape[-1] - 1 - seen_by.int().argmax(-1))


@pytest.mark.parametrize("local", [False, True])
def test_attention_in_blocks_of_queries_is_attention_at_once(local, monkeypatch):
    """With its gradients, of rows that hold documents and empty positions."""
    monkeypatch.setattr(attention, "BLOCK", 5)
    documents = random_documents(9)
    batch = batch_of(documents, [[0] * len(document) for document in documents])
    pattern = masked_pattern(batch.documents, window=3)
    assert len(batch.documents) > 1
    assert (batch.documents < 0).any()
    mask = pattern.nearby if local else pattern.everywhere
    qkv, away = torch.randn(*batch.documents.shape, 2, 3, 8, requires_grad=True), torch.randn(1, 1, 2, 8)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(3))
    plain = (q @ k.transpose(-1, -2)).masked_fill(~mask, -torch.inf).softmax(-1) @ v
    compute, n_keys = torch.nn.functional.scaled_dot_product_attention, []

    def counted(q, k, v, **options):
        n_keys.append(k.shape[2])
        return compute(q, k, v, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    found, expected = attend(qkv, pattern, local=local), plain.transpose(1, 2)
    assert len(n_keys) == math.ceil(mask.shape[-1] / 5)
    assert sum(n_keys) < 0.6 * len(n_keys) * mask.shape[-1]
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad((y * away).sum(), qkv)[0] for y in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_a_block_of_queries_has_no_keys_that_none_of_them_sees(monkeypatch):
    """Of two rows of ten positions, one of which has a document that begins at position 5."""
    monkeypatch.setattr(attention, "BLOCK", 4)
    one, two = torch.zeros(1, 10), torch.tensor([[0.0] * 5 + [1.0] * 5])

    def keys_of(documents, reach):
        return [(of.start, of.stop) for _, of in _blocks(getattr(masked_pattern(documents, window=3), reach))]

    assert keys_of(torch.cat([one, two]), "everywhere") == [(0, 4), (0, 8), (0, 12)]
    assert keys_of(two, "everywhere") == [(0, 4), (0, 8), (5, 12)]
    assert keys_of(torch.cat([one, two]), "nearby") == [(0, 4), (2, 8), (6, 12)]


def test_every_parameter_has_a_part_and_a_stray_one_is_an_error():
    model = small_model(routing_for("sgtm"))
    assert {part_of(name) for name, _ in model.named_parameters()} == {"retain", "joint", "forget/spanish"}
    model.stray = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="'stray' is in no part"):
        [part_of(name) for name, _ in model.named_parameters()]


@pytest.mark.parametrize("precision", [torch.autocast, HalfStream])
def test_bfloat16_routes_as_float32_does(precision):
    routing = routing_for("sgtm")
    documents = random_documents(6)
    batch = batch_of(documents, [[i % 3] * len(d) for i, d in enumerate(documents)])
    from excise.train.step import accumulate

    model, low = small_model(routing), small_model(routing)
    accumulate(model, [batch], routing)
    accumulate(low, [batch], routing, precision("cpu", torch.bfloat16))
    for a, b in zip(model.parameters(), low.parameters(), strict=True):
        assert b.grad.dtype == torch.float32
        assert (a.grad - b.grad).norm() < 0.1 * a.grad.norm() + 1e-4


@pytest.mark.parametrize("changes", [{"n_layers": 2}, {"n_heads": 4}, {"d_mlp": 100}])
def test_a_partition_of_another_size_than_the_config_is_an_error(changes):
    ((name, value),) = changes.items()
    sizes = {"n_layers": SMALL.n_layers, "n_heads": SMALL.n_heads, "d_mlp": SMALL.d_mlp, **changes}
    other = partition(routing_for("sgtm"), **sizes)
    for parts in (other, other.without("spanish")):
        with pytest.raises(
            ValueError, match=f"the partition has {name}={value} where model.{name}={getattr(SMALL, name)}"
        ):
            GPT(SMALL, parts)


def test_gradients_of_positions_are_the_same_bit_for_bit_with_several_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        table = Embedding(torch.zeros(256, 96), "joint")
        ids, g = torch.arange(256).expand(64, 256), torch.randn(64, 256, 96)
        found = []
        for _ in range(8):
            table.zero_grad()
            table(ids, PLAIN).backward(g)
            found.append(table.weight["joint"].grad.clone())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("rule", ["sgtm", "none"])
def test_a_half_stream_is_in_half_precision_from_block_to_block_and_ends_with_its_context(rule):
    model, seen = small_model(routing_for(rule)), []
    for block in model.blocks:
        block.register_forward_hook(lambda block, inputs, output: seen.extend([inputs[0].dtype, output[0].dtype]))
    context, tokens = HalfStream("cpu", torch.bfloat16), torch.zeros(1, 4, dtype=torch.long)
    for _ in range(2):
        with context:
            model(tokens)
        assert set(seen) == {torch.bfloat16}
        seen.clear()
        model(tokens)
        assert set(seen) == {torch.float32}
        seen.clear()
