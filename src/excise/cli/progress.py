"""Progress of a run: a bar on a terminal, an aligned line now and then elsewhere."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from excise.evals.progress import HowFar, shown_by
from excise.train import loop

EVERY = 10.0
"""Seconds between two lines about an evaluation, the first of which comes when it has taken so long."""


def spinner(console: Console) -> Progress:
    """What is being done, and since when, where nobody knows how long it takes; nothing where there is no terminal."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class NowAndThen:
    """Whether a line about an evaluation is due."""

    def __init__(self) -> None:
        self.told = 0.0

    def __call__(self, how_far: HowFar) -> bool:
        if how_far.seconds < self.told:  # it is another evaluation
            self.told = 0.0
        if how_far.seconds - self.told < EVERY:
            return False
        self.told = how_far.seconds
        return True


class EvaluationBar:
    """What is being evaluated and how far that is: on a terminal all the time, elsewhere a line where it takes long."""

    def __init__(self, console: Console) -> None:
        self.console, self.bar, self.is_due = console, spinner(console), NowAndThen()
        self.title, self.task = "", self.bar.add_task("")

    def __enter__(self) -> "EvaluationBar":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    @contextmanager
    def of(self, title: str) -> Iterator[None]:
        """While this is evaluated."""
        self.title = title
        self.bar.reset(self.task, description=title)
        with shown_by(self.show):
            yield

    def show(self, how_far: HowFar) -> None:
        text = f"{self.title}: {how_far}"
        self.bar.update(self.task, description=text)
        if not self.console.is_terminal and self.is_due(how_far):
            self.console.print(text, highlight=False, markup=False)


class ProgressBar:
    """A listener that shows loss, tokens per second and the time left, losses after ablation when they are known, and how far
    their evaluation is."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self.bar = Progress(
            TextColumn(f"{title:<16}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task(title, total=None, state="")
        self.is_due, self.shown = NowAndThen(), ExitStack()
        self.before: tuple[float, int] | None = None
        self.first: tuple[float, int] | None = None
        """When the first line came, and its step."""

    def __enter__(self) -> "ProgressBar":
        self.shown.enter_context(shown_by(self.show_evaluation))
        return self

    def __exit__(self, *error: object) -> None:
        self.shown.close()
        if self.bar.live.is_started:
            self.bar.stop()  # which also shows the cursor again

    def __call__(self, progress: loop.Progress) -> None:
        speed = self._speed(progress)
        if self.console.is_terminal:
            self.bar.start()
            state = f"loss {progress.loss:.3f} {speed:,.0f} tokens/s"
            self.bar.update(self.task, completed=progress.done.step, total=progress.n_steps, state=state)
        else:
            self._line(progress, speed)
        if losses := progress.metrics.get("losses"):
            ablated = "  ".join(f"{name} {of_set['ablated']:.3f}" for name, of_set in losses.items())
            self._print(progress, f"loss after ablation: {ablated}")
        if progress.done.step == progress.n_steps and self.console.is_terminal:
            self.bar.stop()

    def show_evaluation(self, how_far: HowFar) -> None:
        if self.bar.live.is_started:
            self.bar.update(self.task, state=f"evaluating {how_far.in_short}")
        elif self.is_due(how_far):
            self.console.print(f"{self.title:<16} evaluating: {how_far}", highlight=False, markup=False)

    def _speed(self, progress: loop.Progress) -> float:
        """Tokens per second since the last call."""
        seconds, tokens = self.before or (0.0, 0)
        self.before = (progress.done.seconds, progress.done.tokens)
        return (progress.done.tokens - tokens) / max(1e-9, progress.done.seconds - seconds)

    def _line(self, progress: loop.Progress, speed: float) -> None:
        text = f"loss {progress.loss:6.3f}  {speed:>9,.0f} tokens/s  {self._left(progress):5.0f} s left"
        self._print(progress, text)

    def _left(self, progress: loop.Progress) -> float:
        """Seconds until the end, with the evaluations on the way as far as they are known: none before the second line."""
        now, step, left = time.monotonic(), progress.done.step, progress.n_steps - progress.done.step
        training = progress.done.seconds / step
        self.first = self.first or (now, step)
        begun, first = self.first
        evaluating = max(0.0, now - begun - training * (step - first))
        # One evaluation in a few steps says little of how many there will be in all.
        return training * left + evaluating * left / max(step - first, progress.n_steps // 10, 1)

    def _print(self, progress: loop.Progress, text: str) -> None:
        self.console.print(
            f"{self.title:<16} step {progress.done.step:>6}/{progress.n_steps}  {text}", highlight=False, markup=False
        )
