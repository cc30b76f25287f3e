"""How long a run trains, and at which rate."""

import math
from dataclasses import dataclass
from typing import Literal

from excise.data.loader import Loader


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The length of a run: passes over its data, optimizer steps, or predicted tokens."""

    unit: Literal["epochs", "steps", "tokens"] = "epochs"
    amount: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.amount < math.inf:
            raise ValueError(
                f"a budget of {self.amount:g} {self.unit} is no training; set train.budget.amount to a number above 0"
            )

    def n_steps(self, loader: Loader) -> int:
        """Optimizer steps, rounded up."""
        per_step = {
            "epochs": 1 / loader.steps_per_epoch,
            "steps": 1.0,
            "tokens": loader.tokens_per_epoch / loader.steps_per_epoch,
        }
        return math.ceil(round(self.amount / per_step[self.unit], 6))


def epochs(amount: float) -> Budget:
    return Budget(unit="epochs", amount=amount)


def steps(amount: float) -> Budget:
    return Budget(unit="steps", amount=amount)


def tokens(amount: float) -> Budget:
    return Budget(unit="tokens", amount=amount)


def is_evaluation(step: int, n_steps: int, evaluations: int) -> bool:
    """Whether a step, counted from 1, ends one of so many equal shares of a run."""
    return step in {round(k * n_steps / evaluations) for k in range(1, evaluations + 1)}


Schedule = Literal["cosine", "constant", "warmup_stable_decay"]


def learning_rate(
    step: int, n_steps: int, schedule: Schedule, *, peak: float, warmup_steps: float, decay_steps: float
) -> float:
    """Linear warm-up, then a cosine to zero, the peak to the end, or the peak and a linear decay to zero; steps count from 0.
    Warm-up and decay below 1 are shares of all steps."""
    rising, falling = (round(of * n_steps) if of < 1 else of for of in (warmup_steps, decay_steps))
    if step < rising:
        return peak * (step + 1) / rising
    if schedule == "cosine":
        done = (step - rising) / max(1, n_steps - rising)
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    if schedule == "constant":
        return peak
    return peak * min(1.0, (n_steps - step) / (min(falling, n_steps - rising) + 1))
