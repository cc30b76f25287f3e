"""The floor of a step counts what the attention kernels do."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def floor():
    file = Path(__file__).parents[1] / "benchmarks" / "floor.py"
    module = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("floor", file))
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("reach", [512, 256, 100])
@pytest.mark.parametrize(("name", "M", "N"), [("forward", 64, 32), ("query", 64, 32), ("key", 32, 64)])
def test_tiles_are_those_that_hold_something_to_see_and_need_no_mask_where_all_is_seen(floor, name, M, N, reach):
    query, key = np.arange(512)[:, None], np.arange(512)[None]
    seen = ((key <= query) & (query - key < reach)).reshape(512 // M, M, 512 // N, N)
    met = np.array(list(floor.tiles(name, 512, reach, M, N)))
    assert met.sum() == seen.any((1, 3)).sum()
    assert met[:, 1].sum() == seen.all((1, 3)).sum()


def test_a_kernel_has_three_loops_of_which_the_one_without_a_mask_is_the_shortest(floor):
    (first, plain, last), once = floor.loops(floor.machine_code("forward", 16, 32))
    assert 60 < plain < min(first, last)
    assert once > 100
