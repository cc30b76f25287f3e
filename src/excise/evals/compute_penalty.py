"""Compute penalty (paper, appendices B and C): a loss as the compute that training without a filter needs for it.

Baseline runs of several sizes give a law for each test set, loss = alpha x C^-beta, in which seeds of a size are one
point: they share what their size is off the law by, and tell nothing more of its slope. The penalty of a run is the share
of its baseline's compute that its loss does not need; it is negative where the run is better than the baseline. Losses
before ablation give the penalty before ablation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SAME_COMPUTE = 1.01
"""Runs of one size whose compute differs by less than this factor are its seeds: packed rows hold a few tokens more or
less."""


@dataclass(frozen=True)
class BaselineRun:
    """A run without a filter, and its loss on a test set."""

    parameters: int
    tokens: int
    loss: float

    def __post_init__(self) -> None:
        if not (0 < min(self.parameters, self.tokens) and self.compute < math.inf and 0 < self.loss < math.inf):
            raise ValueError(f"{self} cannot be on a scaling law; its compute and loss must be finite and above 0")

    @property
    def compute(self) -> float:
        """In FLOPs."""
        return 6.0 * self.parameters * self.tokens


@dataclass(frozen=True)
class ScalingLaw:
    """loss = alpha x C^-beta, by least squares in logarithms."""

    alpha: float
    beta: float
    beta_low: float | None
    beta_high: float | None
    """The 95 % interval; null where two sizes leave no residual to tell it from."""
    beta_error: float
    deviation: float
    """Of the log losses of sizes from the law."""
    mean_log_compute: float
    n_sizes: int

    @property
    def off(self) -> float:
        """How far sizes are from the law, in percent of their losses."""
        return 100 * (math.exp(self.deviation) - 1)

    def equivalent_compute(self, loss: float) -> float:
        """The compute with which a baseline run reaches this loss."""
        if not 0 < loss < math.inf:
            raise ValueError(f"a loss of {loss:g} has no equivalent compute; it must be finite and above 0")
        return _exp(math.log(self.alpha / loss) / self.beta)


@dataclass(frozen=True)
class ComputePenalty:
    """1 - equivalent compute / compute of the baseline."""

    compute_penalty: float
    low: float | None
    high: float | None
    """The 95 % interval; null where the sizes of the law are too few or too scattered to tell its slope from 0."""
    equivalent_compute: float
    baseline_compute: float


def seeds_by_size(runs: Sequence[BaselineRun]) -> list[list[BaselineRun]]:
    """Runs of the same parameters and compute together, the smallest first."""
    found: list[list[BaselineRun]] = []
    for run in sorted(runs, key=lambda run: (run.parameters, run.compute)):
        known = found[-1][0] if found else None
        if known and run.parameters == known.parameters and run.compute < SAME_COMPUTE * known.compute:
            found[-1].append(run)
        else:
            found.append([run])
    return found


def fit_law(runs: Sequence[BaselineRun]) -> ScalingLaw:
    """The law of baseline runs, of which several may have the same size."""
    sizes = seeds_by_size(runs)
    x, y = np.log([[np.mean([getattr(run, of) for run in seeds]) for seeds in sizes] for of in ("compute", "loss")])
    if len(np.unique(x)) < 2:
        raise ValueError(f"{len(runs)} runs of fewer than two sizes give no scaling law; train baselines of more sizes")
    centred, degrees = x - x.mean(), len(sizes) - 2
    beta = -float(centred @ y / (centred @ centred))
    if beta <= 0:
        raise ValueError(f"the loss does not fall with compute (beta is {beta:g}); train the larger baselines longer")
    residuals = y - y.mean() + beta * centred
    deviation = math.sqrt(residuals @ residuals / degrees) if degrees else 0.0
    error = deviation / math.sqrt(centred @ centred)
    low, high = (beta - t95(degrees) * error, beta + t95(degrees) * error) if degrees else (None, None)
    return ScalingLaw(
        math.exp(y.mean() + beta * x.mean()), beta, low, high, error, deviation, float(x.mean()), len(sizes)
    )


def compute_penalty(
    law: ScalingLaw, loss: float, baseline: BaselineRun, *, loss_error: float | None = None
) -> ComputePenalty:
    """The penalty of a run against the baseline of its size, which is one of the runs of the law.

    The baseline's compute is not the actual one but what the law gives for its loss, so that its own penalty is 0. The
    interval is Fieller's for a ratio, with Student's t: four sizes leave two degrees of freedom and little to resample.
    A loss without a standard error is taken to scatter as the baselines do about the law. That the baseline is off the law
    counts in full, though a method of its size may be off by as much: the interval is cautious.
    """
    equivalent, difference = law.equivalent_compute(loss), math.log(baseline.loss / loss)
    error = law.deviation if loss_error is None else loss_error / loss
    if not 0 <= error < math.inf:
        raise ValueError(f"loss_error={loss_error} is no standard error; it must be a number from 0 up")
    low, high = None, None
    if law.beta_low is not None and law.beta_low > 0:
        t, variance = t95(law.n_sizes - 2), error**2 + law.deviation**2
        covariance = (law.mean_log_compute - math.log(baseline.compute)) * law.beta_error**2
        # The ends x solve (difference - x beta)^2 = t^2 times the variance of difference - x beta.
        square, half = law.beta**2 - (t * law.beta_error) ** 2, difference * law.beta - t**2 * covariance
        root = math.sqrt(max(0.0, half**2 - square * (difference**2 - t**2 * variance)))
        low, high = 1 - _exp((half + root) / square), 1 - _exp((half - root) / square)
    return ComputePenalty(1 - _exp(difference / law.beta), low, high, equivalent, law.equivalent_compute(baseline.loss))


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))  # results hold no infinity


def t95(degrees: int) -> float:
    """95 % of Student's t lies between this and its negative."""
    step = np.pi / 2 / 10_000
    angle = step * np.arange(1, 10_001)  # t is the root of the degrees times the tangent of an angle
    mass = np.cumsum(np.cos(angle - step / 2) ** (degrees - 1))
    return math.sqrt(degrees) * math.tan(np.interp(0.95, mass / mass[-1], angle))
