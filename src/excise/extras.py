"""Libraries that only some work needs, and that are installed with an extra of the package."""

import sys
from importlib import import_module
from typing import Any


def needs(module: str, extra: str) -> Any:
    """The module, or one sentence that says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        if missing != module.partition(".")[0]:
            raise
        install = f"{sys.executable} -m pip install --editable '.[{extra}]'"
        raise ValueError(f"this needs {missing}; install it in a clone of Excise with: {install}") from None
