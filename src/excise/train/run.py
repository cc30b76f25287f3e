"""A run: its whole configuration, and the directory it lives in.

config.json            resolved; unknown keys are refused on loading, and one that an older version left out reads as what it did
tokens.json            where modules have token vectors: of which tokens, by domain
data.json              digests of the data and the tokenizer that it is trained on
tokenizer.json         that tokenizer, so that the run can be used where its data are not
epoch.json             predictions in one pass over that data, of each domain too
metrics.jsonl          a line per logged step
checkpoints/step-N/    parameters and optimizer state by part, and a seal over them and the files of SEALED
ablation.json          in a release: what became of its modules
unlearning.json        in a run that has unlearned: how
results.json           written last of all
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from excise import config as configs
from excise.data.dataset import Data, DataConfig
from excise.data.loader import BatchConfig
from excise.data.tokens import Tokenizer
from excise.files import PART, make_folder, sha256_of, write_whole
from excise.identity import SEEDS, differences, digest, read_on
from excise.labels import FIRST_DOMAIN_ID
from excise.model.gpt import GPT, GPTConfig
from excise.routing.partition import partition
from excise.routing.rules import RoutingConfig
from excise.train.schedule import Budget, Schedule, learning_rate

Precision = Literal["auto", "float32", "bfloat16", "bfloat16_stream"]
DECAY_STEPS = 0.2
OwnTokens = Mapping[str, Sequence[int]]
"""By domain the tokens that its module has vectors for."""
SEALED = tuple(f"{name}.json" for name in ("config", "data", "epoch", "tokens", "tokenizer", "ablation", "unlearning"))
"""Files of a run that stay as they are from its first checkpoint on, where it has them."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a run is trained, and how it is logged and saved."""

    budget: Budget = field(default_factory=Budget)
    learning_rate: float = 5e-3
    module_rate: float = 1.0
    """Learning rate of the modules relative to that of the core."""
    warmup_steps: int | float = 0.5
    """Steps in which the rate rises to its peak; below 1, that share of the run's. At rates as high as the paper's, a short
    one ends at higher losses (docs/results.md)."""
    schedule: Schedule = "cosine"
    """What follows the warm-up: a cosine to zero, the peak rate to the end, or the peak and then a linear decay. Until that
    decay, and with a warm-up of so many steps, a run goes as a longer one does."""
    decay_steps: int | float = DECAY_STEPS
    """Steps in which warmup_stable_decay falls to zero at the end; below 1, that share of the run's."""
    beta_1: float = 0.9
    beta_2: float = 0.95
    weight_decay: float = 0.1
    """On matrices and embeddings; biases and norms have none."""
    clip_norm: float = 0.0
    """Largest gradient norm within a part; 0 turns clipping off."""
    precision: Precision = "auto"
    """bfloat16 means autocast; parameters and optimizer state stay in float32. `auto` takes it where the device
    that the run begins on has it. bfloat16_stream has the stream that blocks add to in bfloat16 as well."""
    paper_faithful_optimizer: bool = False
    """Give frozen parts a zero gradient, under which AdamW still moves them, as in the paper's description."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` and so on; `auto` takes a GPU where there is one."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether the blocks are compiled, which takes up to a minute; `auto` means on a GPU, from 1,000 steps on. A GPU also
    replays recorded passes, compiled or not, except with `off`."""
    seed: int = 0
    log_every: int = 10
    evaluations: int = 0
    """How often losses before and after ablation are followed during training, at equal intervals."""
    checkpoint_every: int = 1000
    """Steps between checkpoints, beside those at the end and on Ctrl-C; 0 means only these."""
    checkpoint_minutes: float = 10.0
    """Minutes after which a checkpoint is written as well; 0 means only those of `checkpoint_every`."""
    keep_checkpoints: bool = False
    """Whether all checkpoints are kept, not only the latest two."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "module_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"train.{name}={getattr(self, name):g} must be a number above 0")
        from_zero = ("warmup_steps", "decay_steps", "evaluations", "checkpoint_every", "checkpoint_minutes", "seed")
        for name in (*from_zero, "clip_norm", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"train.{name}={getattr(self, name)} must be a number from 0 up")
        for name in ("warmup_steps", "decay_steps"):
            if getattr(self, name) > 1 and getattr(self, name) % 1:
                raise ValueError(
                    f"train.{name}={getattr(self, name):g} must be a whole number of steps, or a share of them below 1"
                )
        if self.schedule != "warmup_stable_decay" and self.decay_steps != DECAY_STEPS:
            raise ValueError(
                f"train.decay_steps={self.decay_steps:g} does nothing with train.schedule={self.schedule!r}; "
                "set that to 'warmup_stable_decay'"
            )
        for name in ("beta_1", "beta_2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"train.{name}={getattr(self, name):g} must be from 0 up and below 1")
        if self.log_every < 1:
            raise ValueError(f"train.log_every={self.log_every} must be at least 1")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"train.device={self.device!r} is not known; known: auto, cpu, cuda, cuda:1 and so on")

    def rate_at(self, step: int, n_steps: int) -> float:
        """The learning rate of a step, counted from 0, of so many."""
        return learning_rate(
            step,
            n_steps,
            self.schedule,
            peak=self.learning_rate,
            warmup_steps=self.warmup_steps,
            decay_steps=self.decay_steps,
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All options of a run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: GPTConfig = field(default_factory=GPTConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.batch.context > self.model.context:
            raise ValueError(
                f"batch.context={self.batch.context} is longer than the model's; "
                f"set it to at most model.context={self.model.context}"
            )
        partition(self.routing, n_layers=self.model.n_layers, n_heads=self.model.n_heads, d_mlp=self.model.d_mlp)

    @property
    def method(self) -> str:
        """The rule or, without one, the filter: no_filter, weak_filter, perfect_filter."""
        if self.routing.rule != "none":
            return self.routing.rule
        return "no_filter" if self.data.filter == "none" else f"{self.data.filter}_filter"


def build_model(run: RunConfig, tokens: OwnTokens | None = None) -> GPT:
    """The untrained model of a run, whose modules have vectors for these tokens."""
    model = run.model
    parts = partition(run.routing, n_layers=model.n_layers, n_heads=model.n_heads, d_mlp=model.d_mlp, tokens=tokens)
    return GPT(model, parts, run.train.seed)


@dataclass(frozen=True)
class DataDigests:
    """What a run is trained on."""

    data_sha256: str
    tokenizer_sha256: str


@dataclass(frozen=True)
class DomainShare:
    """Predictions in training documents that truly belong to a domain, by whether these are labelled so."""

    domain: str
    labelled: int
    unlabeled: int


@dataclass(frozen=True)
class Epoch:
    """One pass over what a run is trained on."""

    n_predicted: int
    domains: tuple[DomainShare, ...]

    @staticmethod
    def of(run: RunConfig, data: Data) -> "Epoch":
        lengths, labelled = data.train.lengths - 1, data.train.labels >= FIRST_DOMAIN_ID
        if run.batch.packing == "padded":
            lengths = np.minimum(lengths, run.batch.context)

        def share(number: int, domain: str) -> DomainShare:
            of = data.truth == number
            return DomainShare(domain, *(int(lengths[members].sum()) for members in (of & labelled, of & ~labelled)))

        return Epoch(int(lengths.sum()), tuple(share(*named) for named in enumerate(run.routing.domains)))


class RunDirectory:
    """The files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.data_file = path / "data.json"
        self.tokens_file = path / "tokens.json"
        self.tokenizer_file = path / "tokenizer.json"
        self.epoch_file = path / "epoch.json"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.results_file = path / "results.json"
        self.unlearning_file = path / "unlearning.json"

    def open_for(self, run: RunConfig) -> None:
        """Create the directory, or check that it belongs to this configuration.

        Where a run goes on with other options that decide no outcome, config.json stays as it was begun.
        """
        self.check(run)
        if not self.begun:
            make_folder(self.path)
            for left_over in SEALED:
                (self.path / left_over).unlink(missing_ok=True)
            configs.save(run, self.config_file)

    @property
    def begun(self) -> bool:
        """Whether there is anything to go on from or to look at; a run that failed before has left neither."""
        return any(self.checkpoints.glob("*")) or any(self._lines())

    def check(self, run: RunConfig) -> None:
        """Refuse a directory that belongs to a run with another outcome."""
        if altered := self.alterations():
            raise ValueError(
                f"{self.path} was made of another run ({', '.join(altered)}) and is not trained; train in another directory"
            )
        if self.config_file.exists():
            other = differences(self.config(), run)
            if other and self.begun:
                told = ", ".join(f"{path} is {there} there and {here} here" for path, (there, here) in other.items())
                raise ValueError(f"{self.path} belongs to another configuration ({told}); choose another directory")
        elif self.path.exists() and any(file.suffix != PART for file in self.path.iterdir()):
            raise ValueError(f"{self.path} is not empty and holds no run; choose another directory")

    def config(self) -> RunConfig:
        return configs.load(RunConfig, self.config_file, partial(read_on, RunConfig))

    @property
    def method(self) -> str:
        """What the run unlearned by, or else was trained by; ablation does not change it."""
        unlearning = self.alterations().get("unlearning")
        return str(unlearning["method"]) if unlearning else self.config().method

    @property
    def but_for_seeds(self) -> tuple[str, str, str]:
        """What it has in common with runs that differ from it in their seeds alone: its config, the folder of its data, which
        no digest vouches for here, and what was done to it after training."""
        config = self.config()
        return digest(config, but=SEEDS), config.data.source, json.dumps(self.alterations())

    def sealed(self) -> dict[str, str]:
        """SHA-256 of the files that stay as they are from the first checkpoint on, by name."""
        return {name: sha256_of(self.path / name) for name in SEALED if (self.path / name).exists()}

    def alterations(self) -> dict[str, Any]:
        """How the run was made of another, by ablation or unlearning; nothing where it was trained."""
        files = {name: self.path / f"{name}.json" for name in ("ablation", "unlearning")}
        return {name: configs.read_object(file) for name, file in files.items() if file.exists()}

    def digests(self) -> DataDigests:
        return configs.load(DataDigests, self.data_file)

    def trained_on(self, digests: DataDigests) -> None:
        """Note what the run is trained on, or refuse to go on with something else."""
        if not self.data_file.exists():
            configs.save(digests, self.data_file)
        elif self.digests() != digests:
            raise ValueError(f"{self.path} was begun with other data; give it back, or choose another directory")

    def keep(self, tokenizer: Tokenizer, epoch: Epoch) -> None:
        """Keep what is needed of the data where they are not."""
        if not self.tokenizer_file.exists():
            write_whole(self.tokenizer_file, tokenizer.as_json)
        if not self.epoch_file.exists():
            configs.save(epoch, self.epoch_file)

    def keep_same(self, source: "RunDirectory") -> None:
        """Take over the data digests, the tokenizer and the counts of a run on the same data."""
        self.trained_on(source.digests())
        for mine, its in ((self.tokenizer_file, source.tokenizer_file), (self.epoch_file, source.epoch_file)):
            write_whole(mine, its.read_bytes())

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the run was trained with."""
        tokenizer = Tokenizer.load(self.tokenizer_file)
        if tokenizer.sha256 != self.digests().tokenizer_sha256:
            raise ValueError(f"{self.tokenizer_file} is not the tokenizer that {self.path} was trained with")
        return tokenizer

    def epoch(self) -> Epoch:
        """One pass over what the run was trained on."""
        return configs.load(Epoch, self.epoch_file)

    def own_tokens(self) -> dict[str, list[int]]:
        """The tokens that modules have vectors for, by domain."""
        routing = self.config().routing
        if not (routing.forget_tokens and routing.modules):
            return {}
        try:
            noted = json.loads(self.tokens_file.read_text(encoding="utf-8"))
            return {domain: list(configs.parse(tuple[int, ...], of, domain)) for domain, of in noted.items()}
        except (OSError, ValueError, AttributeError) as error:
            raise ValueError(f"{self.tokens_file} does not say which tokens the modules have ({error})") from None

    def note_tokens(self, tokens: OwnTokens) -> None:
        """Note the tokens that modules have vectors for."""
        write_whole(self.tokens_file, (json.dumps(tokens) + "\n").encode())

    def note_same_tokens(self, source: "RunDirectory", but: Sequence[str] = ()) -> None:
        """Note the tokens of another run, but for those of some domains."""
        if source.tokens_file.exists():
            self.note_tokens({domain: of for domain, of in source.own_tokens().items() if domain not in but})

    def metrics(self) -> list[dict[str, Any]]:
        """The records of all logged steps; a last line that was cut off is none."""
        lines = self._lines()
        return self._whole(lines if all(lines[-1:]) else lines[:-1])

    def keep_metrics_until(self, step: int) -> None:
        """Drop what a run that was interrupted wrote after the checkpoint it resumes from, of which any line may be torn."""
        lines = self._lines()
        n_kept = max((number for number, record in enumerate(lines, 1) if record and record["step"] <= step), default=0)
        kept = "".join(json.dumps(record) + "\n" for record in self._whole(lines[:n_kept]))
        write_whole(self.metrics_file, kept.encode())

    def _lines(self) -> list[dict[str, Any] | None]:
        """The record of each line, None where it is damaged."""
        if not self.metrics_file.exists():
            return []
        records: list[dict[str, Any] | None] = []
        for line in self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                record = None
            records.append(record if isinstance(record, dict) and isinstance(record.get("step"), int) else None)
        return records

    def _whole(self, lines: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
        if None in lines:
            raise ValueError(f"{self.metrics_file}:{lines.index(None) + 1} is damaged; bring the file back from a copy")
        return [record for record in lines if record is not None]

    def log(self, record: dict[str, Any]) -> None:
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
