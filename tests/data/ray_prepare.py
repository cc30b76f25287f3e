"""Prepares a source on Ray, with a worker that dies on its way."""

import os
import sys
from pathlib import Path

import ray

from excise.data import prepare as preparing
from excise.data.prepare import PrepareConfig, Share, make_shard
from excise.data.shards import Shard


def make_shard_or_die_once(out: Path, share: Share) -> Shard:
    died = out.parent / "died"
    if share.name == "train-00002" and not died.exists():
        died.touch()
        os._exit(1)
    return make_shard(out, share)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    preparing.make_shard = make_shard_or_die_once
    preparing.prepare(sys.argv[1], Path(sys.argv[2]), PrepareConfig(shard_mb=0.02), engine="ray")
    assert (Path(sys.argv[2]).parent / "died").exists()
