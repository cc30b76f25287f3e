"""Continuations: what may be asked for, and the same prompts continued by several models."""

import json
import math
from dataclasses import asdict

import pytest

from excise.evals.samples import continuations, continue_text
from excise.model.ablation import ablate
from tests.evals.test_losses import LetterTokenizer
from tests.small import routing_for, small_model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": math.nan}, "temperature=nan must be a number from 0 up"),
        ({"temperature": math.inf}, "temperature=inf must be a number from 0 up"),
        ({"temperature": -1.0}, "temperature=-1 must be a number from 0 up"),
        ({"n_tokens": -3}, "n_tokens=-3 must be at least 1"),
        ({"top_k": 0}, "top_k=0 must be at least 1"),
        ({"seed": -1}, "seed=-1 cannot be negative"),
    ],
)
def test_nonsense_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        continue_text(small_model(routing_for("sgtm")), LetterTokenizer(), "5 6 7", **options)


PROMPTS = ["5 6 7", "8 9", "5 6 7"]
WARM = {"n_tokens": 12, "temperature": 2.0, "top_k": 61}


def test_each_model_continues_each_prompt_with_the_seed_of_that_prompt():
    models = {name: small_model(routing_for("sgtm"), seed=seed) for seed, name in enumerate(["one", "other"])}
    results = continuations(models, LetterTokenizer(), PROMPTS, seed=3, **WARM)
    assert [(result.prompt, result.seed) for result in results] == list(zip(PROMPTS, [3, 4, 5], strict=True))
    for result in results:
        assert result.written == {
            name: continue_text(model, LetterTokenizer(), result.prompt, seed=result.seed, **WARM)
            for name, model in models.items()
        }
    assert json.loads(json.dumps([asdict(result) for result in results]))[0]["written"] == results[0].written


def test_equal_models_write_the_same_and_equal_prompts_differ():
    model = small_model(routing_for("sgtm"))
    first, _, third = continuations({"a": model, "b": model}, LetterTokenizer(), PROMPTS, **WARM)
    assert first.written["a"] == first.written["b"] != third.written["a"]


def test_modules_are_removed_from_the_models_named():
    model = small_model(routing_for("sgtm"))
    models = {"full": model, "hidden": model, "ablated": ablate(model, "spanish")}
    (result,) = continuations(models, LetterTokenizer(), ["5 6 7"], removed={"hidden": ["spanish"]}, temperature=0)
    assert result.written["hidden"] == result.written["ablated"] != result.written["full"]


def test_a_model_that_is_not_there_has_no_modules_to_remove():
    models = {"ablated": small_model(routing_for("sgtm"))}
    with pytest.raises(ValueError, match="removed names the model 'ablate'; did you mean 'ablated'"):
        continuations(models, LetterTokenizer(), PROMPTS, removed={"ablate": ["spanish"]})
