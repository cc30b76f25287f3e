"""Unlearning after training: what moves, each loss against a naive formula, and what becomes of a run."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from excise.baselines.models import LanguageModel, language_model
from excise.baselines.npo import NPOConfig, npo_loss
from excise.baselines.rmu import RMUConfig, rmu_loss, steering_vector
from excise.baselines.unlearning import UNLEARNING, UnlearningConfig, document_batches, unlearn, unlearn_run
from excise.data.dataset import everything, load_data, true_sets
from excise.data.own_tokens import own_tokens
from excise.data.packing import Corpus
from excise.evals.losses import evaluate
from excise.evals.run import evaluate_run
from excise.model.attention import masked_pattern
from excise.model.gpt import GPT
from excise.routing.route import PLAIN
from excise.train.loop import train
from excise.train.release import load_run, release
from tests.small import SMALL, random_documents, routing_for, small_model
from tests.train.test_checkpoint import small_run

RMU = RMUConfig(layer=1, update_layers=(0, 1), n_layers=3)
MLPS = {
    "native": "blocks.{}.mlp.",
    "gpt_neox": "gpt_neox.layers.{}.mlp.",
    "llama": "model.layers.{}.mlp.",
    "gpt2": "transformer.h.{}.mlp.",
    "gpt_neo": "transformer.h.{}.mlp.",
    "opt": "model.decoder.layers.{}.fc",
}
"""How the names of the parameters of a block's MLP begin, by architecture."""
for_every_kind = pytest.mark.parametrize("kind", MLPS)
for_every_method = pytest.mark.parametrize("method", UNLEARNING)


def tiny(kind="native", factor=1.0):
    """Three blocks with random weights, all times a factor; some kinds have dropout, and are ready to train."""
    model = small_model(routing_for("sgtm")) if kind == "native" else tiny_huggingface(kind)
    model.load_state_dict({name: factor * value for name, value in model.state_dict().items()})
    return model


def tiny_huggingface(kind):
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "vocab_size": 61, "eos_token_id": 0}
    own = {"gpt_neo": {"attention_types": [[["global"], 3]]}, "opt": {"ffn_dim": 32, "word_embed_proj_dim": 16}}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes | own.get(kind, {})))


def corpora(n=6):
    """Forget and retain documents of several lengths."""
    return [Corpus.of(random_documents(n, seed), [label] * n) for seed, label in ((2, 2), (1, 1))]


def batches():
    return [next(document_batches(corpus, 20, UnlearningConfig(batch_size=4), 0)) for corpus in corpora()]


def documents_of(batch):
    """Inputs (1 T) and targets of each document, without padding."""
    for tokens, targets, n in zip(batch.tokens, batch.targets, (batch.documents >= 0).sum(1), strict=True):
        yield tokens[None, :n], targets[:n].tolist()


def states_alone(model, tokens):
    """The hidden states of one document after block 1: block by block, or as HuggingFace gives them."""
    if not isinstance(model, GPT):
        return model(tokens, output_hidden_states=True).hidden_states[2][0].tolist()
    pattern = masked_pattern(torch.zeros_like(tokens), SMALL.window)
    x = model.tokens(tokens, PLAIN) + model.positions(torch.arange(tokens.shape[1]), PLAIN)
    for block in model.blocks[:2]:
        x, _ = block(x, block.norm_1(x, PLAIN), model.norm, pattern, PLAIN)
    return x[0].tolist()


@for_every_kind
def test_rmu_moves_the_mlps_of_the_chosen_blocks_and_nothing_else(kind):
    model = tiny(kind)
    after = dict(unlearn(model, *corpora(), UnlearningConfig(steps=2, rmu=RMU), 20).named_parameters())
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, after[name])}
    chosen = MLPS[kind].format(0), MLPS[kind].format(1)
    assert moved == {name for name in after if name.startswith(chosen)} != set()


@for_every_kind
def test_rmus_loss_is_the_formula_without_padding(kind):
    model, reference, (forget, retain) = tiny(kind, 1.1).eval(), tiny(kind).eval(), batches()
    uniform = torch.rand(language_model(model).hidden(forget, 1).shape[-1], generator=torch.Generator().manual_seed(5))
    vector = [20 * entry / math.sqrt(sum(e**2 for e in uniform.tolist())) for entry in uniform.tolist()]
    to_vector, moved = [], []
    for tokens, _ in documents_of(forget):
        for state in states_alone(model, tokens):
            to_vector += [(entry - goal) ** 2 for entry, goal in zip(state, vector, strict=True)]
    for tokens, _ in documents_of(retain):
        for state, was in zip(states_alone(model, tokens), states_alone(reference, tokens), strict=True):
            moved += [(entry - before) ** 2 for entry, before in zip(state, was, strict=True)]
    loss = rmu_loss(language_model(model), language_model(reference), forget, retain, RMU, seed=5)
    assert loss.item() == pytest.approx(np.mean(to_vector) + 100 * np.mean(moved), rel=1e-4)


def test_rmu_steers_forget_data_and_holds_retain_data():
    before, (forget, retain) = tiny(), batches()
    config = UnlearningConfig(steps=150, learning_rate=3e-3, rmu=RMU)
    was, now = language_model(before), language_model(unlearn(before, *corpora(), config, 20))
    vector = steering_vector(SMALL.d_model, 20.0, config.seed)
    assert (now.hidden(forget, 1) - vector).norm() < 0.8 * (was.hidden(forget, 1) - vector).norm()
    shift_of_forget, shift_of_retain = ((now.hidden(b, 1) - was.hidden(b, 1)).norm() for b in (forget, retain))
    assert shift_of_retain < 0.3 * shift_of_forget


@for_every_kind
@torch.no_grad()
def test_a_padded_document_has_the_losses_that_it_has_alone(kind):
    model, (batch, _) = tiny(kind).eval(), batches()
    for losses, (tokens, targets) in zip(language_model(model).losses(batch), documents_of(batch), strict=True):
        logits = model(tokens) if kind == "native" else model(tokens).logits
        alone = [-logits[0, i].log_softmax(-1)[target].item() for i, target in enumerate(targets)]
        assert losses.tolist() == pytest.approx(alone + [0.0] * (len(losses) - len(alone)), rel=1e-4)


@pytest.mark.parametrize("factor", [1.0, 0.98])
def test_npos_gradient_is_that_of_ascent_weighted_by_how_little_is_forgotten(factor):
    """W = 2 pi^beta / (pi^beta + pi_ref^beta) times the gradient of log pi; at the reference W is 1."""
    model, reference, (forget, retain) = tiny(factor=factor), language_model(tiny()), batches()
    log_pi, log_ref = (-m.losses(forget).sum(-1) for m in (language_model(model), reference))
    W = [2 / (1 + math.exp(0.1 * (ref - pi))) for pi, ref in zip(log_pi.tolist(), log_ref.tolist(), strict=True)]
    assert (W == [1.0] * 4) == (factor == 1.0)
    wanted = torch.autograd.grad((torch.tensor(W) * log_pi).mean(), list(model.parameters()))
    loss = npo_loss(language_model(model), reference, forget, retain, NPOConfig(retain_weight=0.0))
    torch.testing.assert_close(torch.autograd.grad(loss, list(model.parameters())), wanted, rtol=1e-3, atol=1e-4)


def test_npo_begins_at_its_known_value():
    model, (forget, retain) = language_model(tiny()), batches()
    loss = npo_loss(model, model, forget, retain, NPOConfig(beta=0.5, retain_weight=3.0)).item()
    assert loss == pytest.approx(2 / 0.5 * math.log(2) + 3 * model.losses(retain).sum().item() / 4, rel=1e-5)


@pytest.fixture(scope="module")
def counting():
    """A model that has learned to count, down in high tokens and up in low ones; forget and retain data."""
    starts = np.random.default_rng(0).integers(0, 30, 40).tolist()
    down = Corpus.of([[30 + (start - i) % 30 for i in range(12)] for start in starts], [2] * 40)
    up = Corpus.of([[(start + i) % 30 for i in range(12)] for start in starts], [1] * 40)
    model = GPT(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    streams = [document_batches(corpus, 20, UnlearningConfig(batch_size=16), 0) for corpus in (down, up)]
    for _ in range(60):
        optimizer.zero_grad()
        sum(language_model(model).losses(next(stream)).mean() for stream in streams).backward()
        optimizer.step()
    return model, down, up


@for_every_method
def test_every_method_raises_the_forget_loss_and_hardly_the_retain_loss(counting, method):
    config = UnlearningConfig(method=method, steps=30, learning_rate=1e-2 if method == "rmu" else 1e-3, rmu=RMU)
    unlearned, (model, *sets) = unlearn(*counting, config, 20), counting
    (forget_before, retain_before), (forget, retain) = ([evaluate(m, c).mean for c in sets] for m in (model, unlearned))
    assert forget_before < 0.2 < 2 < forget
    assert retain < retain_before + 0.25


@for_every_method
@pytest.mark.parametrize("kind", ["native", "gpt2"])
def test_the_given_model_is_left_alone_and_the_seed_decides(kind, method):
    model, steps, config = tiny(kind), [], UnlearningConfig(method=method, steps=2, rmu=RMU)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    configs = (config, config, replace(config, seed=1))
    once, again, other = (unlearn(model, *corpora(), c, 20, lambda *s: steps.append(s)).state_dict() for c in configs)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, again[name]) for name, value in once.items()), "dropout is off"
    assert not all(torch.equal(value, other[name]) for name, value in once.items())
    assert [step for step, _ in steps] == [1, 2] * 3


@pytest.mark.parametrize(("n_layers", "layers"), [(16, (5, 6, 7)), (12, (4, 5)), (6, (2, 3)), (2, (1,)), (1, (0,))])
def test_layers_scale_with_the_depth(n_layers, layers):
    scaled = RMUConfig().scaled(n_layers)
    assert (scaled.update_layers, scaled.layer) == (layers, layers[-1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RMUConfig(layer=6), "must name blocks from 0 to rmu.layer=6"),
        (lambda: NPOConfig(beta=0.0), "npo.beta=0 must be"),
        (lambda: UnlearningConfig(method="rmv"), "did you mean 'rmu'"),
        (lambda: language_model(torch.nn.Linear(2, 2)), "a Linear cannot unlearn"),
        (lambda: LanguageModel(torch.nn.ModuleList([torch.nn.Linear(2, 2)]), None).mlp(0), "no MLP"),
        (lambda: unlearn(tiny(), *corpora(0), UnlearningConfig(), 20), "needs both forget and retain"),
        (lambda: unlearn(tiny(factor=math.nan), *corpora(), UnlearningConfig(), 20), "the loss is nan at step 1; try"),
        (
            lambda: true_sets(small_run().data, ["spanish"], ["spanisch"]),
            "no domain 'spanisch'; did you mean 'spanish'",
        ),
    ],
)
def test_nonsense_is_refused_in_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_run_that_has_unlearned_is_evaluated_like_any(tmp_path):
    run = small_run(**{"data.forget_share": 0.2})
    assert [len(corpus) for corpus in true_sets(run.data, ["spanish"], ["spanish"])] == [12, 12], (
        "true labels, and nothing left out"
    )
    data = load_data(run.data, run.routing.domains)
    train(run, data, tmp_path / "full")
    release(tmp_path / "full", tmp_path / "run", ["spanish"])
    for steps in (0, 3):
        unlearn_run(tmp_path / "run", tmp_path / str(steps), UnlearningConfig(steps=steps))
    before, same, after = (evaluate_run(tmp_path / name, data) for name in ("run", "0", "3"))
    assert same.losses == before.losses
    assert after.losses.sets["spanish"].before != before.losses.sets["spanish"].before
    noted = json.loads((tmp_path / "3" / "unlearning.json").read_text())
    assert (noted["method"], noted["domains"], noted["rmu"]["update_layers"]) == ("rmu", ["spanish"], [1])
    with pytest.raises(ValueError, match="is not empty; choose another directory"):
        unlearn_run(tmp_path / "run", tmp_path / "0", UnlearningConfig(steps=0))


def test_token_reset_gives_the_words_of_a_domain_their_first_vectors_and_moves_nothing_else(tmp_path):
    """In a run that was trained without them, by the true labels."""
    run = small_run(**{"routing.rule": "none", "data.filter": "weak"})
    trained = train(run, load_data(run.data, run.routing.domains), tmp_path / "run")
    unlearn_run(tmp_path / "run", tmp_path / "reset", UnlearningConfig(method="token_reset"))
    found, first = load_run(tmp_path / "reset")[0], GPT(run.model, seed=run.train.seed)
    corpus = load_data(everything(run.data), ("spanish",)).train
    words = own_tokens(corpus, ("spanish",), 0.9, run.model.vocabulary_size)["spanish"]
    vectors, before, start = (model.tokens.weight["joint"] for model in (found, trained, first))
    others = sorted(set(range(run.model.vocabulary_size)) - set(words))
    assert len(words) > 8
    assert torch.equal(vectors[words], start[words])
    assert not torch.equal(before[words], start[words])
    assert torch.equal(vectors[others], before[others])
    same = [torch.equal(a, b) for a, b in zip(found.parameters(), trained.parameters(), strict=True)]
    assert same.count(False) == 1


def test_token_reset_refuses_to_do_nothing(tmp_path):
    run = small_run(**{"routing.rule": "none"})
    train(run, load_data(run.data, run.routing.domains), tmp_path / "run")
    for changes, words in (
        ({"domains": ("klingon",)}, "there is no domain 'klingon'"),
        ({"token_share": 0.99999}, "set it lower"),
    ):
        with pytest.raises(ValueError, match=words):
            unlearn_run(tmp_path / "run", tmp_path / "reset", UnlearningConfig(method="token_reset", **changes))
    with pytest.raises(ValueError, match="use unlearn_run"):
        unlearn(tiny(), *corpora(), UnlearningConfig(method="token_reset"), 8)


def test_token_reset_takes_a_share_that_most_uses_reach():
    with pytest.raises(ValueError, match="token_share"):
        UnlearningConfig(method="token_reset", token_share=0.2)
