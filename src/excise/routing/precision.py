"""The precision that a pass computes in: that of matrix products is torch's autocast, that of the stream between blocks is here."""

from contextvars import ContextVar, Token
from typing import Any

import torch
from torch import Tensor

_stream: ContextVar[torch.dtype | None] = ContextVar("stream", default=None)


class HalfStream(torch.autocast):
    """Autocast in which the stream that blocks add to is in half precision too."""

    outside: Token[torch.dtype | None]

    def __enter__(self) -> Any:
        self.outside = _stream.set(self.fast_dtype)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        _stream.reset(self.outside)
        return super().__exit__(*error)


def stream_dtype(x: Tensor) -> torch.dtype:
    """The precision of the stream that begins with this."""
    return _stream.get() or x.dtype


def product_dtype(x: Tensor) -> torch.dtype:
    """The precision of matrix products of this."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
