"""Kernels in Triton, which comes with torch on a GPU; everything that they do has a plain way as well."""

import math

import torch
from torch.utils._triton import has_triton

HALVES = (torch.bfloat16, torch.float16)
"""The precisions that there are kernels for."""
HAS_KERNELS = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0) and has_triton()
"""Whether they can run: older GPUs have too little memory near their processors."""
GELU_SLOPE, GELU_CUBE = 2 * math.sqrt(2 / math.pi), 0.044715
"""The form of GELU with a tanh is x times the sigmoid of slope (x + cube x^3)."""
