"""Arguments by tyro, its complaints as one sentence."""

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tyro

T = TypeVar("T")


def parse(kind: Callable[..., T], args: Sequence[str], command: str, default: Any = None) -> T:
    """The parsed arguments of a command; what does not parse is a ValueError."""
    complaint = io.StringIO()
    options: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(complaint):
            parsed: T = tyro.cli(kind, args=list(args), prog=f"excise {command}", **options)
            return parsed
    except SystemExit as exit:
        if exit.code in (0, None):
            raise
        raise ValueError(f"{sentence(complaint.getvalue())} (excise {command} --help lists the options)") from None


def sentence(complaint: str) -> str:
    """The first paragraph of a boxed complaint, with the option it suggests."""
    lines = [re.sub(r"[╭╮╰╯│┌┐└┘]", " ", line).strip() for line in complaint.splitlines()]
    paragraphs: list[list[str]] = [[]]
    for line in lines[1:]:
        if re.fullmatch(r"─*", line):
            paragraphs.append([])
        else:
            paragraphs[-1].append(line)
    said = re.sub(r"^Error parsing run\.\w+: ", "", " ".join(paragraphs[0])).rstrip(".")
    suggested = re.search(r"Perhaps you meant:.*?(--[\w.-]+)", " ".join(lines))
    return f"{said}; did you mean {suggested[1]}?" if suggested else said
