"""How far an evaluation is, told to whoever shows it; where nobody does, it costs nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HowFar:
    """What is done of an evaluation."""

    done: int
    """Predictions."""
    total: int
    """Predictions that it takes in all; 0 where nobody knows."""
    seconds: float
    """Since it began."""

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,} tokens, {self._left}" if self.total else f"{self.done:,} tokens"

    @property
    def in_short(self) -> str:
        return f"{self.done / self.total:.0%}, {self._left}" if self.total else str(self)

    @property
    def _left(self) -> str:
        return f"{self.seconds * max(0, self.total - self.done) / self.done:.0f} s left"


@dataclass
class _Watched:
    show: Callable[[HowFar], None]
    done: int = 0
    total: int = 0
    began: float = field(default_factory=time.monotonic)


_watched: ContextVar[_Watched | None] = ContextVar("watched", default=None)


@contextmanager
def shown_by(show: Callable[[HowFar], None]) -> Iterator[None]:
    """Evaluations in here tell this function how far they are, after every batch."""
    token = _watched.set(_Watched(show))
    try:
        yield
    finally:
        _watched.reset(token)


@contextmanager
def evaluation_of(n_predicted: int) -> Iterator[None]:
    """An evaluation that takes so many predictions."""
    watched = _watched.get()
    if watched:
        watched.done, watched.total, watched.began = 0, n_predicted, time.monotonic()
    yield
    if watched:
        watched.done, watched.total, watched.began = 0, 0, time.monotonic()


def advance(n_predicted: int) -> None:
    """So many more predictions are made."""
    if watched := _watched.get():
        watched.done += n_predicted
        watched.show(HowFar(watched.done, watched.total, time.monotonic() - watched.began))
