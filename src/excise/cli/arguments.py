"""Arguments by tyro, its complaints as one sentence."""

import contextlib
import difflib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tyro

from excise.labels import nearest

T = TypeVar("T")
FOLDERS = ("--out", "--to", "--directory")
"""What a folder to write to is called, by command."""


def parse(kind: Callable[..., T], args: Sequence[str], command: str, default: Any = None) -> T:
    """The parsed arguments of a command; what does not parse is a ValueError."""
    complaint = io.StringIO()
    options: dict[str, Any] = {"prog": f"excise {command}"} | ({} if default is None else {"default": default})
    try:
        with contextlib.redirect_stderr(complaint):
            parsed: T = tyro.cli(kind, args=list(args), **options)
            return parsed
    except SystemExit as exit:
        if exit.code in (0, None):
            raise
        said = misspelt(args, known_options(kind, options)) or sentence(complaint.getvalue())
        raise ValueError(f"{said} (excise {command} --help lists the options)") from None


def asked(args: Sequence[str]) -> set[str]:
    """The options that a command line names, as they are called in a config."""
    return {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in args if word.startswith("--")}


def known_options(kind: Callable[..., object], options: dict[str, Any]) -> list[str]:
    """The options that the help of a command speaks of."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=["--help"], **options)
    return re.findall(r"--[a-z][\w.-]*", uncoloured(text.getvalue()))


def misspelt(args: Sequence[str], known: Sequence[str]) -> str:
    """What to say of the first unknown option, which tyro does not name where a required one is missing."""
    for given in (word.partition("=")[0] for word in args if word.startswith("--")):
        option = given.replace("_", "-")
        if option not in known:
            folders = [other for other in FOLDERS if other in known and option in FOLDERS]
            close = folders or difflib.get_close_matches(option, known, n=1)
            return f"unknown option {given}; did you mean {close[0]}?" if close else f"unknown option {given}"
    return ""


def uncoloured(text: str) -> str:
    """What is written for a terminal, without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def sentence(complaint: str) -> str:
    """The first paragraph of a boxed complaint."""
    lines = [line.strip("╭╮╰╯│┌┐└┘|+ ") for line in uncoloured(complaint).splitlines()]
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
    if number := re.match(
        r"Error parsing (\S+): (?:invalid literal for int\(\)|could not convert string to float).*?'(.*)'", said
    ):
        return f"{number[1]} {number[2]} is not a number"
    return said
