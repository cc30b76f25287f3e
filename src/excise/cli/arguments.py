"""Arguments by tyro, its complaints as one sentence."""

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tyro

from excise.labels import nearest

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
    lines = [line.strip("╭╮╰╯│┌┐└┘|+ ") for line in complaint.splitlines()]
    paragraphs: list[list[str]] = [[]]
    for line in lines[1:]:
        if re.fullmatch(r"[─-]*", line):
            paragraphs.append([])
        else:
            paragraphs[-1].append(line)
    first = next((paragraph for paragraph in paragraphs if any(paragraph)), lines)
    said = re.sub(r"^Error parsing run\.\w+: ", "", " ".join(first)).strip().rstrip(".")
    if choice := re.match(r"invalid choice '(.*?)' for argument '(.*?)'\. Expected one of \((.*)\)", said):
        known = re.findall(r"'(.*?)'", choice[3])
        return f"{choice[2]} {choice[1]} is not known; {nearest(choice[1], known)}"
    suggested = re.search(r"Perhaps you meant:.*?(--[\w.-]+)", " ".join(lines))
    return f"{said}; did you mean {suggested[1]}?" if suggested else said
