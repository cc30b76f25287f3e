"""Arguments by tyro, its complaints as one sentence of ours."""

import ast
import contextlib
import difflib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import dropwhile, pairwise, takewhile
from typing import Any, TypeVar

import tyro

from excise.labels import nearest

T = TypeVar("T")
FOLDERS = ("--out", "--to", "--directory")
"""What a folder to write to is called, by command."""


def parse(kind: Callable[..., T], args: Sequence[str], command: str, default: Any = None) -> T:
    """The parsed arguments of a command; what does not parse is a ValueError."""
    options: dict[str, Any] = {"prog": f"excise {command}"} | ({} if default is None else {"default": default})
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parsed: T = tyro.cli(kind, args=list(args), **options)
            return parsed
    except SystemExit as exit:
        if exit.code in (0, None):
            raise
        known = known_options(kind, options)
        said = misspelt(args, known) or sentence(Complaint.of(kind, args, known, options))
        raise ValueError(f"{said} (excise {command} --help lists the options)") from None


def asked(args: Sequence[str]) -> set[str]:
    """The options that a command line names, as they are called in a config."""
    return {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in args if word.startswith("--")}


@dataclass(frozen=True)
class Complaint:
    """What tyro has against some arguments."""

    lines: Sequence[str]
    """Its box, without the frame, no line of which is wrapped."""
    first: str
    """The name of the first argument of the command, which is the one without an option, if any is."""
    args: Sequence[str]
    known: Sequence[str]
    """All options of the command."""

    @staticmethod
    def of(kind: Callable[..., Any], args: Sequence[str], known: Sequence[str], options: dict[str, Any]) -> "Complaint":
        text = io.StringIO()
        with contextlib.redirect_stderr(text), contextlib.suppress(SystemExit), unwrapped():
            tyro.cli(kind, args=list(args), **options)
        _, *framed = uncoloured(text.getvalue()).splitlines()  # but for the title
        # Where a terminal cannot draw a frame, blanks stand in its place.
        lines = [re.sub(r"^(│ |  )|\s*│?$", "", line) for line in framed]
        return Complaint(lines, fields(kind)[0].name, args, known)  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """Its first paragraph."""
        whole = dropwhile(is_rule, self.lines)
        return " ".join(line.strip() for line in takewhile(lambda line: not is_rule(line), whole)).rstrip(".")


def is_rule(line: str) -> bool:
    return not line.strip("─╰╯ -")


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """A terminal so wide that no word is cut in two."""
    before = dict(os.environ)
    os.environ["COLUMNS"] = "10000"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        os.environ.update(before)


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


def sentence(complaint: Complaint) -> str:
    """What is wrong and what would do."""
    for pattern, say in SENTENCES.items():
        if found := re.match(pattern, complaint.text):
            return say(found, complaint)
    return complaint.text


def missing(_: re.Match[str], complaint: Complaint) -> str:
    named = [line.split()[0] for line in complaint.lines if re.match(r" {4}\S", line)]
    names = [name if name.startswith("--") else complaint.first.upper() for name in named if name != "excise"]
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing"


def unexpected(found: re.Match[str], complaint: Complaint) -> str:
    word = found[1].split(", ")[0]
    if re.match(r"-[^\d.]", word):
        return f"unknown option {word}"
    switches = [option for option in complaint.known if opposite(option) in complaint.known]
    before = {*pairwise(complaint.args), *(tuple(arg.split("=", 1)) for arg in complaint.args if "=" in arg)}
    for option in switches:
        if (option, word) in before:
            return f"{option} takes no value such as {word}; its opposite is {opposite(option)}"
    return f"{word} belongs to no option"


def opposite(option: str) -> str:
    """What turns an option off."""
    return re.sub(r"([^.-][^.]*)$", r"no-\1", option)


def without_value(found: re.Match[str], complaint: Complaint) -> str:
    after = [word for option, word in pairwise(complaint.args) if option == found[1] and re.match("-[^-]", word)]
    return f"{found[1]} has no value" + (f"; one that begins with - is written {found[1]}={after[0]}" if after else "")


def unknown_choice(found: re.Match[str], _: Complaint) -> str:
    given, option, known = found.groups()
    return f"{option} {given} is not known; {nearest(given, ast.literal_eval(known))}"


def no_number(found: re.Match[str], complaint: Complaint) -> str:
    """Of the values of an option that takes numbers and perhaps a few words; others take whatever is given."""
    option, values = found[1], values_of(found[1], complaint.args)
    form = next((line for line in map(str.strip, complaint.lines) if line.startswith(f"{option} ")), "")
    number = "a number" if "FLOAT" in form else "a whole number"
    words = "".join(f" or {word}" for word in re.findall(r"\{([a-z]+)\}", form))
    kinds = (float, int) if "FLOAT" not in form else (float,)
    wrong = [value for kind in kinds for value in values if not is_number(value, kind)]
    return f"{option} {(wrong or values)[0] or repr('')} is not {number}{words}"


def values_of(option: str, args: Sequence[str]) -> list[str]:
    """What is given to an option, the last time that it is named."""
    last = max(i for i, word in enumerate(args) if word.partition("=")[0].replace("_", "-") == option)
    if "=" in args[last]:
        return [args[last].partition("=")[2]]
    return list(takewhile(lambda word: not word.startswith("--"), args[last + 1 :]))


def is_number(text: str, kind: type[int] | type[float]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


SENTENCES: dict[str, Callable[[re.Match[str], Complaint], str]] = {
    r"Missing from excise": missing,
    r"Unrecognized options: (.*)": unexpected,
    r"Missing value for argument '(.*?)'": without_value,
    r"invalid choice '(.*?)' for argument '(.*?)'\. Expected one of (\(.*\))": unknown_choice,
    r"Error parsing (--\S+): ": no_number,
    r"Error parsing \S+: (.*)": lambda found, _: found[1],
}
"""By how a complaint begins, what is said of it."""
