"""Tiny runs on disk, and copies of them with other numbers, for tests of what is measured of a run."""

import json
import operator
import shutil
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from excise import config as configs
from excise.config import override
from excise.data.dataset import load_data
from excise.data.prepare import PrepareConfig, prepare
from excise.data.topics import ADJACENT, articles
from excise.evals.results import add_measures
from excise.evals.run import losses, open_run
from excise.train.checkpoint import save_checkpoint
from excise.train.loop import train
from excise.train.release import find_checkpoint, load_run
from excise.train.run import RunConfig, RunDirectory
from tests.train.test_checkpoint import reseal, small_run

GENERAL = ("culture", "geography", "history")
PLAIN = {"routing.rule": "none"}
Numbers = Mapping[str, Any]
"""By where they stand in results.json, as in `measures/losses/sets`."""


def tiny_run(**changes: Any) -> RunConfig:
    """Biology is to be forgotten; military is trained on but in neither group."""
    tiny = {
        "data.source": "topics",
        "data.n_stories": 40,
        "data.n_test_stories": 32,
        "data.adjacent": ADJACENT,
        "data.general": GENERAL,
        "routing.domains": ("biology",),
        "model.context": 128,
        "batch.rows_per_step": 16,
        "batch.rows_per_micro_batch": 16,
        "batch.label_mixing": "rows",
        "train.budget.amount": 4,
        "train.learning_rate": 0.05,
        "train.warmup_steps": 0,
        "train.device": "cpu",
        "train.checkpoint_every": 2,
        "train.keep_checkpoints": True,
    }
    return small_run(**{**tiny, **changes})


def train_run(directory: Path, **changes: Any) -> Path:
    run = tiny_run(**changes)
    train(run, load_data(run.data, run.routing.domains), directory)
    return directory


def evaluated(run: Path) -> Path:
    """The run with losses in its results.json."""
    subject = open_run(run)
    add_measures(subject.results_file, subject.provenance, {"losses": losses(subject)})
    return run


def copy_of(run: Path, to: Path, config: Mapping[str, Any] | None = None, numbers: Numbers | None = None) -> Path:
    """A copy of a run with another config and its method, and other numbers in its results.json."""
    shutil.copytree(run, to)
    files = RunDirectory(to)
    configs.save(override(files.config(), config or {}), files.config_file)
    reseal(to)
    results = results_of(to)
    results["provenance"]["method"] = files.method
    for path, value in (numbers or {}).items():
        *names, last = path.split("/")
        inner = reduce(operator.getitem, names, results)
        assert last in inner, f"{path} is no number of a run"
        inner[last] = value
    files.results_file.write_text(json.dumps(results))
    return to


def results_of(run: Path, name: str = "results.json") -> dict[str, Any]:
    results: dict[str, Any] = json.loads((run / name).read_text())
    return results


def prepared(folder: Path, tokenizer: str = "stories", without: str = "") -> Path:
    """Data with articles of every category for training, and of all but one for the test."""
    (folder / "source").mkdir(parents=True)
    for split, left_out in (("train", ""), ("test", without)):
        of_split = (article for article in articles(32, seed=1, split=split) if article.category != left_out)
        lines = (json.dumps({"text": article.text, "category": article.category}) + "\n" for article in of_split)
        (folder / "source" / f"{split}.jsonl").write_text("".join(lines))
    prepare(str(folder / "source"), folder / "data", PrepareConfig(tokenizer=tokenizer))
    return folder / "data"


def diverge(run: Path) -> None:
    """Make one weight of a run's latest checkpoint no number."""
    model, done = load_run(run)
    with torch.no_grad():
        model.blocks[0].mlp.up.bias["retain"][0] = torch.nan
    save_checkpoint(find_checkpoint(run), model, None, done, RunDirectory(run).sealed())
