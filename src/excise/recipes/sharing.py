"""Work that several processes do together by way of one directory: each takes what is neither done nor taken.

A piece of work is taken by locking a file, which the system unlocks when a process ends, however it ends.
"""

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

WAIT = 1.0
"""Seconds until a process that found nothing to do looks again."""


@contextmanager
def taken(file: Path, *, wait: bool = False) -> Iterator[bool]:
    """Whether this process has a piece of work to itself; with `wait`, it is made to."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def work_through(
    names: Sequence[str],
    locks: Path,
    *,
    is_done: Callable[[str], bool],
    is_ready: Callable[[str], bool] = lambda name: True,
    do: Callable[[str], None],
) -> None:
    """Do all work of these names that is left, in this order where it can be, beside others who do the same."""

    def did_one(left: Sequence[str]) -> bool:
        for name in filter(is_ready, left):
            with taken(locks / name) as mine:
                if mine and not is_done(name):
                    do(name)  # which may find that something else must be done first
                    return True
        return False

    while left := [name for name in names if not is_done(name)]:
        if not did_one(left):
            time.sleep(WAIT)
