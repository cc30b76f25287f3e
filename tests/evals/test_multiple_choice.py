"""Multiple-choice scores against each choice scored alone, in a batch of one."""

import json
from dataclasses import asdict, replace
from statistics import mean

import pytest
import torch
from scipy.stats import binomtest

from excise.data.tokens import story_tokenizer
from excise.data.topics import CATEGORIES, Question, questions
from excise.evals.losses import without_modules
from excise.evals.multiple_choice import multiple_choice, pairs_of, read_questions, score_choices
from excise.model.ablation import ablate
from tests.evals.test_losses import LetterTokenizer
from tests.small import SMALL, random_documents, routing_for, small_model

TOKENIZER, BIAS = LetterTokenizer(), torch.linspace(-3, 3, SMALL.vocabulary_size)
MODEL = small_model(routing_for("sgtm"))
ABLATED = ablate(MODEL, "spanish")


def some_questions(n=40):
    """Questions of up to 19 tokens with two to four choices of up to 6, in turn without a category and of two."""
    made = []
    for i in range(n):
        asked, *others = random_documents(3 + i % 3, seed=i, longest=20)
        choices = tuple(TOKENIZER.decode(tokens[: 1 + (i + 2 * j) % 6]) for j, tokens in enumerate(others))
        made.append(Question(TOKENIZER.decode(asked), choices, i % 2, ("", "biology", "history")[i // 2 % 3]))
    return made


def alone(model, question, context):
    """The log-probability of each token of each choice, after as much of the question as fits before all of them."""
    asked, *choices = (TOKENIZER.encode(text) for text in (question.question, *question.choices))
    while len(asked) + max(map(len, choices)) - 1 > context:
        asked = asked[1:]
    for choice in choices:
        log_p = (model(torch.tensor([(asked + choice)[:-1]]))[0].detach() + BIAS).log_softmax(-1)
        yield [float(log_p[len(asked) - 1 + i, token]) for i, token in enumerate(choice)]


@pytest.mark.parametrize(("context", "cut"), [(32, False), (10, True)])
def test_packed_choices_score_as_each_does_alone(context, cut):
    asked = some_questions()
    pairs = [pair for question in asked for pair in pairs_of(question, TOKENIZER, context)]
    scores = score_choices(MODEL, pairs, without_modules(MODEL, ["spanish"]), BIAS, context)
    expected = [sum(tokens) for question in asked for tokens in alone(ABLATED, question, context)]
    assert scores.tolist() == pytest.approx(expected, rel=1e-5)
    assert any(len(question) + len(choice) == context + 1 for question, choice in pairs) == cut


def test_accuracy_counts_the_questions_whose_answer_scores_highest():
    asked, kinds = some_questions(), {"summed": sum, "per token": mean}
    rows = multiple_choice(MODEL, TOKENIZER, asked, removed=["spanish"], bias=BIAS, context=10)
    assert [(row.category, row.score) for row in rows] == [(c, s) for c in ("", "biology", "history") for s in kinds]
    for row in rows:
        of_row = [question for question in asked if not row.category or question.category == row.category]
        scores = [[kinds[row.score](tokens) for tokens in alone(ABLATED, question, 10)] for question in of_row]
        n, n_right = len(of_row), sum(of[q.answer] == max(of) for of, q in zip(scores, of_row, strict=True))
        assert (row.n_questions, row.accuracy) == (n, n_right / n)
        assert row.chance == pytest.approx(sum(1 / len(question.choices) for question in of_row) / n)
        assert [row.low, row.high] == pytest.approx([*binomtest(n_right, n).proportion_ci(method="wilson")], abs=1e-6)
    assert rows[0].accuracy != rows[1].accuracy, "the two scores choose differently"


@pytest.mark.parametrize(("sign", "accuracy"), [(1, 1.0), (-1, 0.0)])
def test_certain_answers_are_all_right_and_impossible_ones_all_wrong(sign, accuracy):
    asked = [Question("5 6", ("1 2", f"{30 + i} 40", "3 4"), 1, "") for i in range(20)]
    bias = 100.0 * sign * (torch.arange(SMALL.vocabulary_size) >= 30)
    assert [row.accuracy for row in multiple_choice(MODEL, TOKENIZER, asked, bias=bias)] == [accuracy, accuracy]


def test_the_embedded_questions_are_read_back_from_jsonl_and_scored(tmp_path):
    asked, path = list(questions(24, seed=1)), tmp_path / "questions.jsonl"
    as_text = [asdict(question) | {"answer": question.choices[question.answer]} for question in asked[:12]]
    path.write_text("\n\n".join(map(json.dumps, [*as_text, *map(asdict, asked[12:])])), encoding="utf-8")
    assert read_questions(path) == asked
    for question in asked:
        tokens = [asked + choice for asked, choice in pairs_of(question, story_tokenizer(), 64)]
        assert tokens == [story_tokenizer().encode(f"{question.question} {choice}") for choice in question.choices]
    config = replace(SMALL, vocabulary_size=story_tokenizer().vocabulary_size, context=64)
    rows = multiple_choice(small_model(routing_for("sgtm"), config), story_tokenizer(), asked)[2::2]
    assert [(row.category, row.n_questions, row.chance) for row in rows] == [(c, 3, 0.25) for c in sorted(CATEGORIES)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((change, "is not a JSON object of question") for change in ("{", "[]", {"categroy": "x"})),
        *((change, "needs texts") for change in ({"question": " "}, {"choices": ["1", "1 "]}, {"category": 5})),
        *(({"choices": wrong}, "needs texts") for wrong in ("12", ["1"], ["1", 2])),
        *(({"answer": wrong}, f"has answer {wrong!r}; use the text") for wrong in (2, -1, True, None, "3")),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path, change, message):
    good, path = {"question": "5 6", "choices": ["1", "2 3"], "answer": 0}, tmp_path / "q.jsonl"
    path.write_text(json.dumps(good) + "\n\n" + (change if isinstance(change, str) else json.dumps(good | change)))
    with pytest.raises(ValueError, match=rf"q\.jsonl:3 {message}"):
        read_questions(path)


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(ValueError, match="there are no questions"):
        multiple_choice(MODEL, TOKENIZER, [])
    with pytest.raises(ValueError, match="question '5' is empty or has a choice longer than context=32"):
        multiple_choice(MODEL, TOKENIZER, [Question("5", ("1", "2 " * 33), 0, "")])
    with pytest.raises(ValueError, match="log-probabilities that are not finite"):
        multiple_choice(MODEL, TOKENIZER, some_questions(2), bias=BIAS + torch.nan)
