"""The benchmark times what it says, and says what it times."""

import numpy as np
import pytest
import torch

from excise import bench as benches
from excise.bench import (
    BILINGUAL_MIX,
    FORGET_UNITS,
    MIXED,
    N_STEPS,
    PLAIN,
    PLAIN_QUARTERS,
    REFERENCE,
    SINGLE,
    SINGLE_LABELS,
    SINGLE_QUARTERS,
    VECTORS,
    BenchConfig,
    Variant,
    bench,
    documents,
    variants,
    zero_retain_gradients,
)
from excise.model.gpt import GPTConfig
from excise.train.run import TrainConfig

SMALLEST = GPTConfig(vocabulary_size=64, context=16, n_layers=2, d_model=16, n_heads=4, d_mlp=80)
NO_GPU = (None, None)


@pytest.fixture(autouse=True)
def _smallest(monkeypatch):
    monkeypatch.setattr(benches, "SIZES", {"tiny": (SMALLEST, 4)})


def test_every_kind_of_step_is_timed_against_plain_training():
    pytest.importorskip("transformers")
    results = bench(BenchConfig(rounds=3, precision="float32", reference=True))
    timings = {timing.name: timing for timing in results.timings}
    ours = {PLAIN, MIXED, VECTORS, SINGLE, *SINGLE_LABELS, PLAIN_QUARTERS, SINGLE_QUARTERS}
    assert set(timings) == {*ours, REFERENCE}
    assert timings[PLAIN].ratio == 1
    for timing in timings.values():
        assert timing.milliseconds == pytest.approx(1000 * 4 * 16 / timing.tokens_per_second), "full rows"
        assert timing.matrix_share == pytest.approx(
            6 * results.parameters * timing.tokens_per_second / results.peak_tflops / 1e12
        )


def test_where_kinds_are_timed_one_after_the_other_each_is_told_at_once(monkeypatch):
    monkeypatch.setattr(benches, "take_turns", lambda device: False)
    told = []
    config = BenchConfig(rounds=1, precision="float32", kinds=("mixed", "single"))
    results = bench(config, lambda results: told.append([timing.name for timing in results.timings]))
    assert told == [[PLAIN], [PLAIN, MIXED], [PLAIN, MIXED, SINGLE]]
    assert [timing.name for timing in results.timings] == told[-1]


def test_only_the_kinds_that_are_named_are_timed():
    made = variants(BenchConfig(kinds=("mixed", "single")), TrainConfig(), torch.device("cpu"))
    assert list(made) == [PLAIN, MIXED, SINGLE]


@pytest.mark.parametrize(("kind", "per_step", "rows"), [(SINGLE, 1, 4), (SINGLE_QUARTERS, 4, 1)])
def test_one_label_a_micro_batch_is_timed_with_each_label_in_its_share(monkeypatch, kind, per_step, rows):
    steps = []
    monkeypatch.setattr(benches, "accumulate_passes", lambda _, batches: steps.append(batches))
    stepper = variants(BenchConfig(), TrainConfig(), torch.device("cpu"))[kind]()
    for _ in range(stepper.in_a_row):
        stepper.step()
    assert {len(step) for step in steps} == {per_step}
    assert {batch.tokens.shape for step in steps for batch in step} == {(rows, SMALLEST.context)}
    labels = [batch.label_ids for step in steps for batch in step]
    assert [labels.count(frozenset({label})) for label in range(3)] == [6, 2, 12], "29, 10 and 61 % of twenty"


def test_steps_that_have_no_quarters_are_not_cut_into_them():
    kinds = variants(BenchConfig(rows=6), TrainConfig(), torch.device("cpu"))
    assert not {PLAIN_QUARTERS, SINGLE_QUARTERS} & kinds.keys()


def test_a_busy_machine_does_not_change_a_ratio():
    plain, other = Variant(10, NO_GPU, [], [1.0, 5.0, 1.0]), Variant(20, NO_GPU, [], [3.0, 15.0, 15.0])
    assert other.against(plain, in_turns=True) == pytest.approx(1.5)
    assert other.against(plain, in_turns=False) == pytest.approx(15 / 2 / 1), "medians, where one went after the other"


def test_set_up_is_what_the_first_steps_took_beyond_the_usual():
    assert Variant(1, NO_GPU, [9.0, 2.5, 2.5], [2.0, 1.0, 3.0]).set_up == pytest.approx(8.0)
    assert Variant(1, NO_GPU, [1.0], [2.0]).set_up == 0.0


def test_the_reference_zeroes_the_gradients_of_all_heads_and_units_but_the_modules():
    transformers = pytest.importorskip("transformers")
    neo = transformers.GPTNeoConfig(
        vocab_size=50, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=80, max_position_embeddings=8,
        attention_types=[[["global", "local"], 1]],
    )  # fmt: skip
    model = transformers.GPTNeoForCausalLM(neo)
    tokens = torch.randint(0, 50, (2, 8))
    model(input_ids=tokens, labels=tokens).loss.backward()
    zero_retain_gradients(model, head_size=4)
    block = model.transformer.h[0]
    for rows in (block.attn.attention.q_proj.weight, block.attn.attention.v_proj.weight):
        assert rows.grad.any(1).tolist() == [True] * 4 + [False] * 12
    assert block.attn.attention.out_proj.weight.grad.any(0).tolist() == [True] * 4 + [False] * 12
    assert block.mlp.c_fc.weight.grad.any(1).tolist() == [True] * FORGET_UNITS + [False] * 16
    assert block.mlp.c_proj.weight.grad.any(0).tolist() == [True] * FORGET_UNITS + [False] * 16
    assert not block.mlp.c_proj.bias.grad.any()
    assert not block.attn.attention.out_proj.bias.grad.any()
    assert block.ln_1.weight.grad.all()


@pytest.mark.parametrize(("change", "message"), [({"rounds": 0}, "rounds=0"), ({"rows": -1}, "rows=-1")])
def test_what_cannot_be_timed_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        BenchConfig(**change)


def test_documents_are_labelled_in_the_shares_of_the_mix():
    corpus = documents(BenchConfig(rows=100), BILINGUAL_MIX, N_STEPS)
    assert np.bincount(corpus.labels).tolist() == [N_STEPS * share for share in (29, 10, 61)]
    assert set(corpus.lengths) == {SMALLEST.context + 1}


def test_stories_have_the_lengths_of_tinystories(monkeypatch):
    monkeypatch.setattr(benches, "SIZES", {"tiny": (GPTConfig(context=2048), 64)})
    lengths = documents(BenchConfig(documents="stories"), BILINGUAL_MIX, N_STEPS).lengths
    assert abs(lengths.mean() - (220 + 339) / 2) < 10
