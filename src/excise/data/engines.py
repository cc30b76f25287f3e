"""Where the shares of a large job are done: in processes on this machine, or as Ray tasks on many.

Both do the same pure function on the same shares, a bounded number at a time, and yield results in any order.
"""

import multiprocessing as mp
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.connection import wait as wait_for
from typing import Literal, TypeVar

from excise.extras import needs

Engine = Literal["local", "ray"]
S = TypeVar("S")
R = TypeVar("R")


def run(engine: Engine, work: Callable[[S], R], shares: Iterable[S], processes: int) -> Iterator[R]:
    """The results of some work on every share."""
    if engine == "ray":
        return _on_ray(work, shares)
    return map(work, shares) if processes == 1 else _in_processes(work, shares, processes)


def _in_processes(work: Callable[[S], R], shares: Iterable[S], processes: int) -> Iterator[R]:
    with ProcessPoolExecutor(processes, _context(), initializer=_end_with_parent) as pool:
        running: set[Future[R]] = set()
        for share in shares:
            running.add(pool.submit(work, share))
            if len(running) > processes + 1:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        yield from (future.result() for future in running)


def _context() -> mp.context.BaseContext:
    """Workers that share what is loaded already, where that is safe: a fork beside other threads can hang."""
    safe = "fork" in mp.get_all_start_methods() and threading.active_count() == 1
    return mp.get_context("fork" if safe else "spawn")


def _end_with_parent() -> None:
    """A worker whose parent was killed would otherwise wait for work for ever."""
    parent = mp.parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _call(work: Callable[[S], R], share: S) -> R:
    return work(share)


def _on_ray(work: Callable[[S], R], shares: Iterable[S]) -> Iterator[R]:
    """Ray does the share of a lost worker again by itself."""
    ray = needs("ray", "ray")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    task = ray.remote(max_retries=-1)(_call)
    limit = int(ray.cluster_resources()["CPU"]) + 1
    running = []
    for share in shares:
        running.append(task.remote(work, share))
        if len(running) > limit:
            (done,), running = ray.wait(running)
            yield ray.get(done)
    yield from map(ray.get, running)
