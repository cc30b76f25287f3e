"""The kernels for GPUs on a CPU: their arithmetic in Triton's interpreter, and that they compile for a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
HERE = Path(__file__).parent


def run_python(*args, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, args)], capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_kernels_compute_what_plain_operations_do():
    # Triton interprets what is imported while the variable is set, its own functions too.
    script = HERE / "interpreted_kernels.py"
    assert "115 passed" in run_python("-m", "pytest", "-v", "-p", "no:cacheprovider", script, TRITON_INTERPRET="1")


def test_the_kernels_compile_for_a_gpu():
    assert run_python(HERE / "compile_kernels.py").split() == [
        "_forward_kernel",
        "_query_kernel",
        "_key_kernel",
    ] * 3 + [
        "_in_place",
        "_weigh",
        *["_narrow_rows"] * 3,
        *["_narrow_tokens"] * 2,
        *["_norm_kernel"] * 3,
        *["_units_kernel"] * 2,
    ]
