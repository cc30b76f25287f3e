"""Multiple-choice questions, a test that the paper's own models were too small for (section 6, limitations).

A choice is scored as the continuation of its question, after one space, by the log-probability of its tokens: summed,
and per token. A question too long for the context is cut from the left, alike for all its choices; a choice never is.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from excise.data.packing import IGNORED, Corpus
from excise.data.tokens import Tokenizer
from excise.data.topics import Question
from excise.evals.losses import NotFinite, batches_of, without_modules
from excise.labels import UNLABELED_ID
from excise.model.gpt import GPT
from excise.routing.route import Route

Pair = tuple[list[int], list[int]]  # the tokens of a question and of one of its choices


@dataclass(frozen=True)
class Accuracy:
    """The share of questions whose answer has the highest score of all choices, and its 95 % interval (Wilson)."""

    category: str  # empty for all questions together
    score: str  # the log-probability, "summed" or "per token"
    n_questions: int
    chance: float
    accuracy: float
    low: float
    high: float


def read_questions(path: Path) -> list[Question]:
    """The questions of a jsonl file; `answer` is the index or the text of a choice, `category` may be absent."""
    return [_question(line, f"{path}:{i}") for i, line in enumerate(path.read_bytes().splitlines(), 1) if line.strip()]


def _question(line: bytes, where: str) -> Question:
    try:
        question, choices, answer, category = vars(Question(**{"category": ""} | json.loads(line))).values()
        texts = {text.strip() for text in (question, *choices) if isinstance(text, str)} - {""}
    except (ValueError, TypeError):
        raise ValueError(f"{where} is not a JSON object of question, choices, answer and, if any, category") from None
    if not (isinstance(choices, list) and 2 < len(texts) == 1 + len(choices) and isinstance(category, str)):
        raise ValueError(f"{where} needs texts: a question, two or more different choices and, if any, a category")
    index = choices.index(answer) if answer in choices else answer
    if type(index) is not int or not 0 <= index < len(choices):
        raise ValueError(f"{where} has answer {answer!r}; use the text or the index (0 is the first) of a choice")
    return Question(question, tuple(choices), index, category)


def multiple_choice(
    model: GPT,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    *,
    removed: Sequence[str] = (),
    bias: Tensor | None = None,
    context: int | None = None,
) -> list[Accuracy]:
    """How well a model answers without some modules and with a bias on its logits: overall, then by category."""
    if not questions:
        raise ValueError("there are no questions to answer; give at least one")
    pairs = [pair for question in questions for pair in pairs_of(question, tokenizer, context or model.config.context)]
    summed = score_choices(model, pairs, without_modules(model, removed), bias, context)
    if not summed.isfinite().all():
        raise NotFinite("the model gives log-probabilities that are not finite, so that no choice is its best")
    scores = {"summed": summed, "per token": summed / torch.tensor([len(choice) for _, choice in pairs])}
    categories = sorted({"", *(question.category for question in questions)})
    return [_accuracy(name, score, questions, of) for name in categories for score, of in scores.items()]


def pairs_of(question: Question, tokenizer: Tokenizer, context: int) -> list[Pair]:
    """One pair for each choice, of at most one token more than the context, the last token being no input."""
    asked = tokenizer.encode(question.question.rstrip())
    choices = [tokenizer.encode(" " + choice.strip()) for choice in question.choices]
    room = context + 1 - max(map(len, choices))
    if room < 1 or not asked:
        raise ValueError(f"question {question.question!r} is empty or has a choice longer than context={context}")
    return [(asked[-room:], choice) for choice in choices]


@torch.no_grad()
def score_choices(model: GPT, pairs: Sequence[Pair], route: Route, bias: Tensor | None, context: int | None) -> Tensor:
    """The log-probability of each choice (N); a pair is a document that is never cut, so their numbers agree."""
    corpus = Corpus.of([asked + choice for asked, choice in pairs], [UNLABELED_ID] * len(pairs))
    begins = torch.tensor([len(asked) - 1 for asked, _ in pairs], device=next(model.parameters()).device)
    total = torch.zeros(len(pairs), dtype=torch.float64)
    for batch in batches_of(model, corpus, context):
        hidden = model.hidden(**batch.inputs, route=route)
        targets = batch.targets.where(batch.positions >= begins[batch.documents], IGNORED)
        _, losses = model.losses(hidden, targets, torch.ones_like(hidden[..., 0]), route, bias)
        total.index_add_(0, batch.documents.clamp_min(0).flatten().cpu(), -losses.flatten().double().cpu())
    return total


def _accuracy(category: str, score: str, questions: Sequence[Question], scores: Tensor) -> Accuracy:
    of_each = torch.split(scores, [len(question.choices) for question in questions])
    asked = [(q, of) for q, of in zip(questions, of_each, strict=True) if category in ("", q.category)]
    n, z = len(asked), 1.959964
    chance = sum(1 / len(question.choices) for question, _ in asked) / n
    p = sum(int(of.argmax()) == question.answer for question, of in asked) / n
    centre, half, scale = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5, 1 + z**2 / n
    return Accuracy(category, score, n, chance, p, max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))
