"""Kernels in Triton, which comes with torch on a GPU; everything that they do has a plain way as well."""

import torch
from torch.utils._triton import has_triton

HALVES = (torch.bfloat16, torch.float16)
"""The precisions that there are kernels for."""
HAS_KERNELS = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0) and has_triton()
"""Whether they can run: older GPUs have too little memory near their processors."""
