"""Kernels in Triton, which comes with torch on a GPU; everything that they do has a plain way as well."""

from importlib.util import find_spec

import torch

HAS_KERNELS = torch.cuda.is_available() and find_spec("triton") is not None
