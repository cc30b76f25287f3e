"""A bilingual corpus from an English one, story by story through a language model (paper, appendix I).

Every answer is a line of a file that only grows, and is on the disk before the next story is taken. A killed run goes
on from there: only the requests that were under way, at most `concurrency` of them, are sent once more.
"""

import asyncio
import fcntl
import gzip
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

from excise.data.documents import BadRows, Document, Fields, is_readable, read_file
from excise.extras import needs

PROMPT = """Translate the following short story into Spanish. Keep the same tone, style, and meaning.
The translation should be natural and fluent Spanish, appropriate for children.

English story:
{story}

Spanish translation:"""

RETRIES = 30  # of a request that fails in passing: three minutes, or as long as the service says
TIMEOUT = 120.0  # seconds for one request
ANSWERS = 3  # to one story that may be no translation before it counts as failed
FAILED = 0.01  # share of failed stories that ends a run
BAD_ROWS = 0.01  # share of rows without a story that ends a run

# English characters for each token of a request and of its answer, in the newest tokenizer; older ones need fewer tokens.
INPUT_CHARACTERS, OUTPUT_CHARACTERS = 3.0, 2.0


@dataclass(frozen=True)
class Model:
    """List prices of November 2026, in dollars per million tokens."""

    input_price: float
    output_price: float
    thinks: bool = False
    """Unless told not to, which is billed and counts towards max_tokens."""


PAPER_MODEL = "claude-3-haiku-20240307"
MODELS = {
    PAPER_MODEL: Model(0.25, 1.25),
    "claude-haiku-4-5": Model(1.0, 5.0),
    "claude-haiku-5-5": Model(0.1, 0.5, thinks=True),
}


@dataclass(frozen=True, kw_only=True)
class TranslateConfig:
    """What is asked for, and what it costs."""

    model: str = PAPER_MODEL
    """The default is the paper's, which Anthropic retired in April 2026: give one that is served, as claude-haiku-5-5."""
    max_tokens: int = 4096
    """Of one translation; one that is longer fails."""
    input_price: float = 0.0
    """Dollars per million tokens; 0 for the list price, where it is known."""
    output_price: float = 0.0
    """Dollars per million tokens; 0 for the list price, where it is known."""
    concurrency: int = 8
    """Requests under way at a time."""
    limit: int = 0
    """Translate only this many stories, the first ones; 0 for all."""
    split: Literal["train", "validation", "test"] = "train"
    """What is written; of a source folder, the files whose names start with it are read."""
    retry_failed: bool = False
    """Ask again for the stories that failed before."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency={self.concurrency} must be at least 1")
        if not all(self.prices):
            raise ValueError(
                f"no price is known for model {self.model!r}; give --input-price and --output-price in dollars per "
                f"million tokens, or one of the models {', '.join(MODELS)}"
            )

    @property
    def prices(self) -> tuple[float, float]:
        """Of input and of output, in dollars per million tokens."""
        listed = MODELS.get(self.model, Model(0, 0))
        return self.input_price or listed.input_price, self.output_price or listed.output_price

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        """In dollars."""
        input_price, output_price = self.prices
        return (input_tokens * input_price + output_tokens * output_price) / 1e6


@dataclass(frozen=True)
class Plan:
    """A translation that has not started: what there is to do, and about what it costs."""

    source: Path
    out: Path
    config: TranslateConfig
    n_stories: int
    n_bad_rows: int
    n_to_ask: int
    """Texts without an answer; one that occurs twice is asked for once."""
    input_tokens: int
    output_tokens: int

    @property
    def cost(self) -> float:
        return self.config.cost(self.input_tokens, self.output_tokens)

    @property
    def corpus(self) -> Path:
        return self.out / f"{self.config.split}.jsonl.gz"


@dataclass(frozen=True)
class Translated:
    """What a corpus holds and has cost; it lies beside it as JSON."""

    model: str
    n_translated: int
    n_failed: int
    n_bad_rows: int
    cost: float


def plan_translation(source: Path, out: Path, config: TranslateConfig) -> Plan:
    """What is still to be done and an estimate of its cost; nothing is written and nothing is asked for."""
    path, bad_rows = answers_path(out, config), BadRows(BAD_ROWS)
    with path.open("rb") if path.exists() else io.BytesIO() as file:
        lengths = [len(story.text) for _, story in unanswered(source, config, bad_rows, Answers(file))]
    n_stories = bad_rows.n_rows - bad_rows.n_bad
    if not n_stories:
        raise ValueError(f"{source} holds no stories")
    input_tokens = round((sum(lengths) + len(PROMPT) * len(lengths)) / INPUT_CHARACTERS)
    output_tokens = round(sum(lengths) / OUTPUT_CHARACTERS)
    return Plan(source, out, config, n_stories, bad_rows.n_bad, len(lengths), input_tokens, output_tokens)


def translate(plan: Plan, listener: Callable[["Progress"], None] = lambda progress: None) -> Translated:
    """Ask for every story that has no answer yet, then write the corpus in the order of the source."""
    with open_answers(answers_path(plan.out, plan.config)) as answers:
        if plan.n_to_ask:
            try:
                asyncio.run(_ask_for_all(plan, answers, listener))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return _write_corpus(plan, answers)


def stories_of(source: Path, config: TranslateConfig, bad_rows: BadRows) -> Iterator[tuple[str, Document]]:
    """The stories of a file, or of a split in a folder, in order; each with the key of its answer."""
    fields = Fields(category="", label="")
    rows = (row for path in _files(source, config.split) for row in read_file(path, fields))
    stories = islice(bad_rows.skip(rows), config.limit or None)
    return ((answer_key(story.text, config.model), story) for story in stories)


def _files(source: Path, split: str) -> list[Path]:
    if source.is_file():
        return [source]
    files = sorted(path for path in source.rglob(f"{split}*") if is_readable(path))
    if not files:
        raise ValueError(f"{source} is no file, and no folder with a file that starts with {split!r} and can be read")
    return files


def unanswered(
    source: Path, config: TranslateConfig, bad_rows: BadRows, answers: "Answers"
) -> Iterator[tuple[str, Document]]:
    """The stories that are still to be asked for, each text once."""
    seen: set[str] = set()
    for key, story in stories_of(source, config, bad_rows):
        settled = key in answers.offsets and not (config.retry_failed and key in answers.failed)
        if key not in seen and not settled:
            seen.add(key)
            yield key, story


@dataclass(frozen=True)
class Answer:
    """A translation, or why there is none."""

    key: str
    cost: float
    text_es: str = ""
    failed: str = ""


def answer_key(story: str, model: str) -> str:
    """What an answer is found by: another story, model or prompt has another one."""
    return hashlib.blake2b(f"{model} {PROMPT.format(story=story)}".encode(), digest_size=16).hexdigest()


class Answers:
    """The answers in a file, the last one for each key; only where they stand is held in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.end, self.cost = file, 0, 0.0
        self.offsets: dict[str, int] = {}
        self.failed: set[str] = set()
        file.seek(0)
        for line in file:
            if line.endswith(b"\n"):  # or else a kill cut it short
                self._add(Answer(**json.loads(line)), len(line))

    def __getitem__(self, key: str) -> Answer:
        self.file.seek(self.offsets[key])
        return Answer(**json.loads(self.file.readline()))

    def record(self, answer: Answer) -> None:
        """Append an answer and wait until it is on the disk."""
        line = json.dumps(asdict(answer), ensure_ascii=False).encode() + b"\n"
        self.file.write(line)
        self.file.flush()
        os.fsync(self.file.fileno())
        self._add(answer, len(line))

    def _add(self, answer: Answer, n_bytes: int) -> None:
        self.offsets[answer.key] = self.end
        self.end += n_bytes
        self.cost += answer.cost
        if answer.failed:
            self.failed.add(answer.key)
        else:
            self.failed.discard(answer.key)


def answers_path(out: Path, config: TranslateConfig) -> Path:
    # No ending that readers know: it lies beside the corpus but is no part of it.
    return out / f"{config.split}.answers"


@contextmanager
def open_answers(path: Path) -> Iterator[Answers]:
    """The answers, open to this process alone for more of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is translating into {path.parent}") from None
        answers = Answers(file)
        file.truncate(answers.end)
        yield answers


@dataclass
class Progress:
    """What this run has done so far."""

    n_answered: int = 0
    n_failed: int = 0
    cost: float = 0.0

    def count(self, answer: Answer) -> None:
        """Take in an answer; too many failures are an error, before they cost more."""
        self.n_answered += 1
        self.n_failed += bool(answer.failed)
        self.cost += answer.cost
        if self.n_failed > FAILED * max(self.n_answered, 1000):
            raise ValueError(
                f"{self.n_failed} of {self.n_answered} stories have no translation (the last: {answer.failed}); "
                f"choose another --model, or more --max-tokens with --retry-failed"
            )


async def _ask_for_all(plan: Plan, answers: Answers, listener: Callable[[Progress], None]) -> None:
    config, progress = plan.config, Progress()
    pending = unanswered(plan.source, config, BadRows(BAD_ROWS), answers)

    async def work() -> None:
        for key, story in pending:
            answer = await _ask(client, key, story, config)
            answers.record(answer)
            progress.count(answer)
            listener(progress)

    async with _client() as client, asyncio.TaskGroup() as workers:
        for _ in range(config.concurrency):
            workers.create_task(work())


def _client() -> Any:
    """A client that tries again what may pass (429, 5xx, timeouts, cut connections), with growing waits."""
    if not os.environ.get("ANTHROPIC_API_KEY"):
        raise ValueError("ANTHROPIC_API_KEY is not set; put the key of the Anthropic API into it")
    return needs("anthropic", "translate").AsyncAnthropic(max_retries=RETRIES, timeout=TIMEOUT)


async def _ask(client: Any, key: str, story: Document, config: TranslateConfig) -> Answer:
    """The first answer that is a translation, or else the last one."""
    cost = 0.0
    for _ in range(ANSWERS):
        message = await _message(client, story, config)
        cost += config.cost(message.usage.input_tokens, message.usage.output_tokens)
        text = "".join(block.text for block in message.content if block.type == "text").strip()
        if text and message.stop_reason == "end_turn":
            return Answer(key, cost, text_es=text)
    return Answer(key, cost, failed="empty" if message.stop_reason == "end_turn" else message.stop_reason)


async def _message(client: Any, story: Document, config: TranslateConfig) -> Any:
    try:
        return await client.messages.create(
            model=config.model,
            max_tokens=config.max_tokens,
            messages=[{"role": "user", "content": PROMPT.format(story=story.text)}],
            extra_body={"thinking": {"type": "disabled"}} if MODELS.get(config.model, Model(0, 0)).thinks else {},
        )
    except needs("anthropic", "translate").APIError as error:
        raise ValueError(
            f"the service did not translate {story.id} ({error}); check --model and ANTHROPIC_API_KEY, then give the "
            f"same command again: it goes on from there"
        ) from None


def _write_corpus(plan: Plan, answers: Answers) -> Translated:
    """The texts side by side, then what they have cost."""
    n_failed, partial = 0, plan.corpus.with_suffix(".part")
    # No name and no time in its header, so that the same stories are the same bytes.
    with partial.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as rows:
        for key, story in stories_of(plan.source, plan.config, BadRows(BAD_ROWS)):
            answer = answers[key]
            if answer.failed:
                n_failed += 1
                continue
            row = {"text": story.text, "text_es": answer.text_es}
            rows.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    partial.replace(plan.corpus)
    done = Translated(plan.config.model, plan.n_stories - n_failed, n_failed, plan.n_bad_rows, round(answers.cost, 6))
    (plan.out / f"{plan.config.split}.json").write_text(json.dumps(asdict(done), indent=2) + "\n", encoding="utf-8")
    return done
