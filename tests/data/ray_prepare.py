"""Prepares a source on Ray, with a worker that dies on its way."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import ray

from excise.data import prepare as preparing
from excise.data.documents import Document
from excise.data.prepare import PrepareConfig, Share, make_shards
from excise.data.shards import Finished


def make_shards_or_die_once(
    out: Path, held_out: Callable[[Document], bool], label_of: Mapping[str, str], share: Share
) -> Finished:
    died = out.parent / "died"
    if share.name == "train-00002" and not died.exists():
        died.touch()
        os._exit(1)
    return make_shards(out, held_out, label_of, share)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    preparing.make_shards = make_shards_or_die_once
    preparing.prepare(sys.argv[1], Path(sys.argv[2]), PrepareConfig(shard_mb=0.02), engine="ray")
    assert (Path(sys.argv[2]).parent / "died").exists()
