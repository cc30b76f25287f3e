"""What the demo comes to, seed by seed: recorded once, compared by `make stress`.

    python -m tests.golden.demo /tmp/demos

records what is not in demo.json yet, a demo of three minutes at a time, and goes on where it was interrupted. Each seed is
recorded with one thread and with two: in float32 their losses differ, and by no more than three times as much may a later
version's, as six seeds show only some of what rounding does. A rebuild never records; see `tests.golden.record`.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from excise.config import override
from excise.files import write_whole
from excise.recipes.demo import demo_run, demo_runs, run_demo
from excise.train.run import RunDirectory

FILE = Path(__file__).with_name("demo.json")
SEEDS = range(6)
TO_DO = [(0, 1), (0, 2), (1, 1), (1, 2), *((seed, n) for n in (1, 2) for seed in SEEDS[2:])]
"""Seeds and numbers of threads, in the order in which they are recorded."""

Losses = Mapping[str, float]
"""By name, of which the first word is the method and the rest the kind of loss."""


def demo_of(seed: int, directory: Path) -> dict[str, Any]:
    """The verdicts and losses of the demo with this seed, which is done in a directory or done there already."""
    run = override(demo_run(), {"train.seed": seed, "data.seed": seed, "train.precision": "float32"})
    results = run_demo(directory, run, lambda method: [])
    losses = {
        f"{method} {role} {stage}": value
        for method, roles in results.losses.items()
        for role, of in roles.items()
        for stage, value in vars(of).items()
    }
    for method in demo_runs(run):
        for record in RunDirectory(directory / "runs" / method).metrics():
            losses[f"{method} training, step {record['step']}"] = record["loss"]
    verdicts = {claim.name: claim.holds for claim in results.claims}
    return {"verdicts": verdicts, "losses": {name: float(f"{loss:.7g}") for name, loss in losses.items()}}


def read_recorded() -> dict[str, dict[str, Any]]:
    """All that is recorded, by `seed 0, threads 1` and so on."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def key_of(seed: int, threads: int) -> str:
    return f"seed {seed}, threads {threads}"


def main(folder: Path) -> None:
    for seed, threads in TO_DO:
        key = key_of(seed, threads)
        if key not in read_recorded():
            torch.set_num_threads(threads)
            found = demo_of(seed, folder / key.replace(", ", "-").replace(" ", "-"))
            write_whole(FILE, (json.dumps(read_recorded() | {key: found}, indent=1) + "\n").encode())
            print(key, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
