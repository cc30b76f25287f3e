"""How fast `excise prepare` is against the tokenizer alone, on the same texts with the same processes.

    python benchmarks/prepare.py SOURCE --tokenizer tokenizer.json [--category FIELD] [--processes 2]

The tokenizer alone means: the texts are in the memory of each process already, and the tokens are dropped.
"""

import argparse
import json
import multiprocessing as mp
import resource
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--tokenizer", default="stories")
    parser.add_argument("--category", default="category")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    config = SourceConfig(fields=Fields(category=args.category))
    context = mp.get_context("spawn")
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
        measured = [times.get() for _ in workers]
        for worker in workers:
            worker.join()
        text_mb = sum(n for _, n in measured) / 1e6
        alone = text_mb / max(seconds for seconds, _ in measured)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            prepare(
                args.source,
                Path(folder) / "data",
                PrepareConfig(source=config, tokenizer=args.tokenizer),
                processes=args.processes,
            )
            prepared = text_mb / (time.perf_counter() - start)
        peak = [resource.getrusage(who).ru_maxrss / 1e3 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        print(
            json.dumps(
                {
                    "text_mb": round(text_mb, 1),
                    "tokenizer_alone_mb_per_s": round(alone, 2),
                    "prepare_mb_per_s": round(prepared, 2),
                    "ratio": round(prepared / alone, 3),
                    "peak_mb_of_main_process": round(peak[0]),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
