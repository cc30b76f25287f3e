"""How fast `excise prepare` is against the tokenizer alone, on the same texts with the same processes.

    python benchmarks/prepare.py SOURCE --tokenizer tokenizer.json [--category FIELD] [--processes 2]

The tokenizer alone means: the texts are in the memory of each process already, and the tokens are dropped.
"""

import argparse
import json
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from pathlib import Path

from excise.data.documents import BadRows, Fields
from excise.data.prepare import PrepareConfig, prepare
from excise.data.sources import SourceConfig, open_source
from excise.data.tokens import load_tokenizer


def tokenise_alone(source: str, config: SourceConfig, tokenizer: str, nth: int, processes: int, barrier, times) -> None:
    encode = load_tokenizer(tokenizer).encode_array
    documents = BadRows(1.0).skip(open_source(source, config).rows())
    texts = [document.text for i, document in enumerate(documents) if i % processes == nth]
    encode(texts[0])
    barrier.wait()
    start = time.perf_counter()
    for text in texts:
        encode(text)
    times.put((time.perf_counter() - start, sum(len(text.encode()) for text in texts)))


class PeakMemory:
    """The most memory that this process and its children have held at once; pages that they share count once.

    A process of its own watches, as `prepare` forks only where there is no other thread.
    """

    def __enter__(self) -> "PeakMemory":
        context = mp.get_context("spawn")
        self.most = context.Value("q", 0)
        self.watcher = context.Process(target=watch, args=(os.getpid(), self.most), daemon=True)
        self.watcher.start()
        while not self.most.value:
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        self.watcher.kill()
        self.watcher.join()

    @property
    def peak(self) -> int:
        return self.most.value


def watch(process: int, most) -> None:
    while True:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        others = [child for child in children if int(child) != os.getpid()]
        most.value = max(most.value, sum(map(proportional_bytes, [str(process), *others])))
        time.sleep(0.05)


def proportional_bytes(process: str) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--tokenizer", default="stories")
    parser.add_argument("--category", default="category")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    config = SourceConfig(fields=Fields(category=args.category))
    plan = PrepareConfig(source=config, tokenizer=args.tokenizer)
    context = mp.get_context("spawn")
    ratios = []
    for _ in range(args.rounds):
        barrier, times = context.Barrier(args.processes), context.Queue()
        workers = [
            context.Process(
                target=tokenise_alone,
                args=(args.source, config, args.tokenizer, nth, args.processes, barrier, times),
            )
            for nth in range(args.processes)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            if worker.exitcode:
                raise SystemExit("a worker failed")
        measured = [times.get() for _ in workers]
        text_mb = sum(n for _, n in measured) / 1e6
        alone = text_mb / max(seconds for seconds, _ in measured)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            prepare(args.source, Path(folder) / "data", plan, processes=args.processes)
            prepared = text_mb / (time.perf_counter() - start)
        ratios.append(prepared / alone)
        print(
            json.dumps(
                {
                    "text_mb": round(text_mb, 1),
                    "tokenizer_alone_mb_per_s": round(alone, 2),
                    "prepare_mb_per_s": round(prepared, 2),
                    "ratio": round(ratios[-1], 3),
                }
            ),
            flush=True,
        )
    with tempfile.TemporaryDirectory() as folder, PeakMemory() as memory:
        prepare(args.source, Path(folder) / "data", plan, processes=args.processes)
    print(json.dumps({"median_ratio": round(statistics.median(ratios), 3)}))
    print(json.dumps({"peak_mb_of_all_processes": round(memory.peak / 1e6)}))


if __name__ == "__main__":
    main()
