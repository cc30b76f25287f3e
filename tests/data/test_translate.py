"""Translation: every story once, whatever the service and the machine do."""

import gzip
import json
import multiprocessing
import os
import random
import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from excise.cli.main import main
from excise.data import translate as translation
from excise.data.translate import PROMPT, TranslateConfig, answers_path, plan_translation, translate
from tests.data.messages_server import (
    KEY,
    MessagesServer,
    answer,
    cut,
    empty,
    error,
    hang_up,
    refused,
    slowly,
    spanish,
    truncated,
)

pytest.importorskip("anthropic", reason="translation needs anthropic: pip install --editable '.[translate]'")

CONFIG = TranslateConfig()
STORIES = [f"Story {i}: the {animal} {{ran}} “home”.\n\nThe end." for i, animal in enumerate(["cat", "dog", "cow"] * 2)]


@pytest.fixture
def serve(monkeypatch):
    servers = []

    def start(behave=lambda story, n: answer):
        server = MessagesServer(behave)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def source(tmp_path):
    return write_stories(tmp_path / "english.jsonl", STORIES)


@pytest.fixture
def command(monkeypatch):
    return lambda *args: main(["translate", *map(str, args)])


def write_stories(path, stories):
    path.write_text("".join(json.dumps({"text": story}) + "\n" for story in stories), encoding="utf-8")
    return path


def run(source, out, config=CONFIG, listener=lambda progress: None):
    return translate(plan_translation(source, out, config), listener)


def corpus(out, split="train"):
    with gzip.open(out / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def both(stories):
    return [{"text": story, "text_es": spanish(story)} for story in stories]


def recorded(out):
    """The whole lines of the answer file."""
    path = answers_path(out, CONFIG)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def first(failure, times=1):
    """Fail the first requests for every story, then answer."""
    return lambda story, n: failure if n <= times else answer


def test_a_request_is_the_papers_prompt_to_the_chosen_model(serve, source, tmp_path):
    server = serve()
    run(source, tmp_path / "out", TranslateConfig(limit=1))
    run(source, tmp_path / "out", TranslateConfig(limit=1, model="claude-haiku-5-5", max_tokens=9))
    content = PROMPT.replace("{story}", STORIES[0])
    papers = {
        "model": "claude-3-haiku-20240307",
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": content}],
    }
    chosen = {"model": "claude-haiku-5-5", "max_tokens": 9, "thinking": {"type": "disabled"}}
    assert server.requests == [papers, papers | chosen]
    assert PROMPT.startswith("Translate the following short story into Spanish. Keep the same tone,")
    assert PROMPT.endswith("\n\nEnglish story:\n{story}\n\nSpanish translation:")


def test_stories_stand_beside_their_translations_in_the_order_of_the_source(serve, source, tmp_path):
    server = serve(lambda story, n: slowly(random.uniform(0, 0.05)))
    counts = []
    done = run(source, tmp_path / "out", listener=lambda progress: counts.append(progress.n_answered))
    assert corpus(tmp_path / "out") == both(STORIES)
    assert set(server.asked.values()) == {1}
    assert counts == [1, 2, 3, 4, 5, 6]
    assert (done.n_translated, done.n_failed) == (6, 0)
    assert done.cost == pytest.approx((600 * 0.25 + sum(map(len, map(spanish, STORIES))) * 1.25) / 1e6)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"train.answers", "train.json", "train.jsonl.gz"}


def test_no_more_requests_are_under_way_than_allowed(serve, source, tmp_path):
    server = serve(lambda story, n: slowly(0.03))
    run(source, tmp_path / "out", TranslateConfig(concurrency=2))
    assert server.most_under_way == 2


def test_a_passing_failure_costs_one_more_request(serve, tmp_path):
    limits = [error(status, retry_after="0.01") for status in (429, 500, 503, 529)]
    failures = dict(enumerate([*limits, error(502), cut, hang_up, truncated, empty, refused]))
    stories = [f"Story {i}" for i in failures]
    server = serve(lambda story, n: failures[stories.index(story)] if n == 1 else answer)
    run(write_stories(tmp_path / "english.jsonl", stories), tmp_path / "out", TranslateConfig(concurrency=10))
    assert corpus(tmp_path / "out") == both(stories)
    assert set(server.asked.values()) == {2}


def test_an_answer_that_takes_too_long_is_asked_for_again(serve, source, tmp_path, monkeypatch):
    monkeypatch.setattr(translation, "TIMEOUT", 0.5)
    server = serve(first(slowly(2)))
    run(source, tmp_path / "out", TranslateConfig(limit=1))
    assert server.asked == {STORIES[0]: 2}


def test_a_wait_is_what_the_service_asks_for_or_longer_every_time(serve, source, tmp_path):
    limit, fault = error(429, retry_after="0.8"), error(500)
    server = serve(lambda story, n: answer if n > 2 else limit if story == STORIES[0] else fault)
    run(source, tmp_path / "out", TranslateConfig(limit=2))
    asked_for, growing = ([after - before for before, after in pairwise(server.times[s])] for s in STORIES[:2])
    assert min(asked_for) >= 0.8
    assert growing[0] >= 0.5 * 0.75
    assert growing[1] >= 1.0 * 0.75


def test_a_service_that_stays_down_ends_the_run_and_loses_nothing(serve, source, tmp_path, monkeypatch):
    monkeypatch.setattr(translation, "RETRIES", 2)
    server = serve(lambda story, n: error(500, retry_after="0.01") if story in STORIES[3:] else answer)
    with pytest.raises(
        ValueError, match=r"did not translate english.jsonl:4 \(Error code: 500.*it goes on from there$"
    ):
        run(source, tmp_path / "out", TranslateConfig(concurrency=1))
    assert server.asked[STORIES[3]] == 3
    assert len(recorded(tmp_path / "out")) == 3
    assert not (tmp_path / "out" / "train.jsonl.gz").exists()
    again = serve()
    run(source, tmp_path / "out")
    assert corpus(tmp_path / "out") == both(STORIES)
    assert set(again.asked) == set(STORIES[3:])


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refused_request_ends_the_command_at_once(serve, source, tmp_path, command, capsys, status):
    server = serve(lambda story, n: error(status, "not like this"))
    assert command(source, "--out", tmp_path / "out", "--yes", "--concurrency", "3") == 2
    said = capsys.readouterr().err
    assert f"Error code: {status}" in said
    assert "not like this" in said
    assert "check --model and ANTHROPIC_API_KEY" in said
    assert said.count("\n") == 1
    assert set(server.asked.values()) == {1}
    assert len(server.asked) <= 3


def test_a_key_is_needed(source, tmp_path, command, capsys, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert command(source, "--out", tmp_path / "out", "--yes") == 2
    assert "ANTHROPIC_API_KEY is not set" in capsys.readouterr().err


def test_what_is_no_translation_fails_after_three_answers_and_is_counted(serve, source, tmp_path):
    failures = dict(zip(STORIES, (truncated, empty, refused), strict=False))
    server = serve(lambda story, n: failures.get(story, answer))
    done = run(source, tmp_path / "out")
    assert [server.asked[story] for story in STORIES] == [3, 3, 3, 1, 1, 1]
    assert corpus(tmp_path / "out") == both(STORIES[3:])
    assert (done.n_translated, done.n_failed) == (3, 3)
    failed = [line for line in recorded(tmp_path / "out") if line["failed"]]
    assert {line["failed"] for line in failed} == {"max_tokens", "empty", "refusal"}
    assert all(line["cost"] > 3 * 100 * 0.25e-6 for line in failed)

    again = serve()
    run(source, tmp_path / "out")
    assert not again.asked
    for _ in range(2):
        done = run(source, tmp_path / "out", TranslateConfig(retry_failed=True))
    assert again.asked == dict.fromkeys(failures, 1)
    assert corpus(tmp_path / "out") == both(STORIES)
    assert done.n_failed == 0


def test_too_many_failures_end_the_run(serve, tmp_path):
    source = write_stories(tmp_path / "english.jsonl", [f"Story {i}" for i in range(40)])
    server = serve(lambda story, n: truncated)
    with pytest.raises(ValueError, match=r"^11 of 11 stories have no translation \(the last: max_tokens\)"):
        run(source, tmp_path / "out", TranslateConfig(concurrency=5))
    assert len(server.asked) <= 15


def test_only_what_was_not_asked_before_is_asked(serve, source, tmp_path):
    server = serve()
    for config, stories, n_asked in (
        (replace(CONFIG, limit=2), STORIES, 2),
        (CONFIG, STORIES, 6),
        (CONFIG, STORIES[::-1], 6),
        (CONFIG, [*STORIES, "Another story.", "Another story."], 7),
        (replace(CONFIG, model="claude-haiku-4-5", limit=1), STORIES, 8),
    ):
        run(write_stories(source, stories), tmp_path / "out", config)
        assert corpus(tmp_path / "out") == both(stories[: config.limit or None])
        assert server.asked.total() == n_asked


def test_splits_of_a_folder_are_translated_apart(serve, tmp_path):
    serve()
    folder = tmp_path / "english"
    folder.mkdir()
    for name, stories in {"train-0": STORIES[:2], "train-1": STORIES[2:3], "validation-0": STORIES[4:]}.items():
        write_stories(folder / f"{name}.jsonl", stories)
    run(folder, tmp_path / "out")
    run(folder, tmp_path / "out", TranslateConfig(split="validation"))
    assert corpus(tmp_path / "out") == both(STORIES[:3])
    assert corpus(tmp_path / "out", "validation") == both(STORIES[4:])
    with pytest.raises(ValueError, match="no folder with a file that starts with 'test'"):
        run(folder, tmp_path / "out", TranslateConfig(split="test"))


@pytest.mark.parametrize("row", ['{"text": ""}', "{}", "no JSON", r'{"text": "half a character: \ud83d"}'])
def test_rows_without_a_story_are_left_out_and_counted(serve, tmp_path, row):
    serve()
    source = write_stories(tmp_path / "english.jsonl", STORIES)
    source.write_text(f"{row}\n{source.read_text()}")
    done = run(source, tmp_path / "out", TranslateConfig(limit=6))
    assert corpus(tmp_path / "out") == both(STORIES)
    assert done.n_bad_rows == 1
    with pytest.raises(ValueError, match="1 of 7 rows cannot be used"):
        run(source, tmp_path / "out")


def test_a_torn_last_line_is_dropped_wherever_it_was_torn(serve, source, tmp_path):
    server, out, in_order = serve(), tmp_path / "out", TranslateConfig(concurrency=1, limit=3)
    run(source, out, in_order)
    path = answers_path(out, CONFIG)
    whole, expected = path.read_bytes(), (out / "train.jsonl.gz").read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in (0, last + 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        asked = server.asked.total()
        run(source, out, in_order)
        assert path.read_bytes() == whole
        assert (out / "train.jsonl.gz").read_bytes() == expected
        assert server.asked.total() - asked == (1 if end else 3)


def test_two_processes_do_not_translate_into_one_folder(serve, source, tmp_path):
    serve()

    def second(progress):
        with pytest.raises(ValueError, match="another process is translating into"):
            translate(plan_translation(source, tmp_path / "out", CONFIG))

    run(source, tmp_path / "out", TranslateConfig(limit=1), second)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"model": "claude-new"}, "no price is known for model 'claude-new'; give --input-price and --output-price"),
        ({"concurrency": 0}, "concurrency=0 must be at least 1"),
    ],
)
def test_wrong_options_are_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        TranslateConfig(**wrong)


def test_the_estimate_comes_first_and_needs_a_yes(serve, source, tmp_path, command, capsys):
    server = serve()
    prices = ("--model", "claude-new", "--input-price", 1000, "--output-price", 2000)
    assert command(source, "--out", tmp_path / "out", *prices) == 2
    said = capsys.readouterr()
    characters = sum(map(len, STORIES))
    tokens_in, tokens_out = round((characters + 6 * len(PROMPT)) / 3), round(characters / 2)
    assert f"6 stories: 6 to translate with claude-new, about {tokens_in} tokens in and {tokens_out} out" in said.out
    assert f"about ${(tokens_in * 1000 + tokens_out * 2000) / 1e6:.2f} (at $1000 and $2000 per million" in said.out
    assert "pass --yes" in said.err
    assert not server.asked
    assert not (tmp_path / "out").exists()


def test_the_command_writes_the_corpus_and_says_where(serve, source, tmp_path, command, capsys):
    server = serve()
    assert command(source, "--out", tmp_path / "out", "--yes", "--limit", "3") == 0
    said = capsys.readouterr().out
    assert "3/3 stories" in said
    assert str(tmp_path / "out" / "train.jsonl.gz") in said
    assert command(source, "--out", tmp_path / "out", "--limit", "3") == 0
    assert "all of them done" in capsys.readouterr().out
    assert server.asked.total() == 3


def run_against(environment, source, out):
    os.environ.update(environment)
    run(source, out, TranslateConfig(concurrency=4))


def test_killed_at_random_moments_it_loses_nothing_and_repeats_nothing_recorded(serve, tmp_path):
    stories = [f"Story {i}: {'la ' * i}" for i in range(60)]
    source, out, draw = write_stories(tmp_path / "english.jsonl", stories), tmp_path / "out", random.Random(3)
    server = serve(lambda story, n: slowly(0.01) if (len(story) + n) % 5 else error(429, retry_after="0.01"))
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    kept = []
    for _ in range(3):
        process = processes.Process(target=run_against, args=(dict(os.environ), source, out))
        process.start()
        assert server.wait_for(server.asked.total() + draw.randint(5, 15))
        process.kill()
        process.join()
        assert recorded(out)[: len(kept)] == kept
        kept = recorded(out)
    assert 0 < len(kept) < 60
    asked = server.asked.copy()
    run(source, out)
    assert recorded(out)[: len(kept)] == kept
    assert len(recorded(out)) == len({line["key"] for line in recorded(out)}) == 60
    assert corpus(out) == both(stories)
    kept_stories = {story for story in stories if spanish(story) in {line["text_es"] for line in kept}}
    assert all(server.asked[story] == asked[story] for story in kept_stories)

    run(source, tmp_path / "whole")
    for name in ("train.jsonl.gz", "train.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
