"""The `excise` command: each sub-command parses, calls one library function and prints what it wrote."""

import errno
import importlib
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from excise import __version__
from excise.labels import nearest

# Threads that wait by spinning for long make torch many times slower where another process wants the same cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

COMMANDS = {
    "demo": "train four small bilingual models and show what removing Spanish leaves (minutes on two cores)",
    "prepare": "tokenise a source into shards: excise prepare my-texts --out data",
    "label": "label a source with a classifier: excise label texts --domain biology --examples FILE --out labels",
    "translate": "translate stories into Spanish: excise translate stories.jsonl --out bilingual",
    "inspect": "show what prepared data holds",
    "train": "train a recipe, or go on with it: excise train demo --directory runs/demo",
    "evaluate": "losses of runs before ablation, after it, and calibrated; leakage, gradient norms and more",
    "attack": "bring removed knowledge back by fine-tuning: excise attack RUN --baseline NO_FILTER_RUN",
    "unlearn": "write a run that has unlearned its domain after training (RMU, NPO, gradient difference, token reset)",
    "ablate": "write a copy of a run without the knowledge in a module",
    "sample": "continue a prompt with the full and the ablated model",
    "reproduce": "figures of the paper from runs of their own: excise reproduce figure-3 --scale smoke",
    "report": "one page about a reproduction or about any runs: excise report RUN... --out report",
    "bench": "tokens per second of plain and of routed training on this machine",
}


SYSTEM_ERRORS = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of this path is not a folder",
    errno.EISDIR: "this is a folder, not a file",
    errno.EEXIST: "this is there already",
    errno.EACCES: "no permission to read or write it",
    errno.EPERM: "no permission to read or write it",
    errno.EROFS: "nothing can be written to that disk",
    errno.ENOSPC: "the disk is full; make room, and give the same command again",
}
"""What the operating system has against something, in words to read behind the name of a file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 where a claim does not hold, 2 for bad input."""
    args = list(sys.argv[1:] if argv is None else argv)
    show_logs()
    errors = Console(stderr=True, soft_wrap=True)
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0
    if args[0] == "--version":
        print(__version__)
        return 0
    try:
        if args[0] not in COMMANDS:
            raise ValueError(f"unknown command {args[0]!r}; {nearest(args[0], COMMANDS)}")
        command = importlib.import_module(f"excise.cli.{args[0]}")
        code: int = command.main(args[1:])
        return code
    except (ValueError, OSError) as error:
        errors.print(f"error: {told(error)}", style="red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt as interrupt:
        errors.print("; ".join(["stopped", *map(str, interrupt.args)]), highlight=False)
        return 130


def told(error: ValueError | OSError) -> str:
    """What is wrong in words of ours, without numbers of the operating system."""
    if not isinstance(error, OSError) or error.errno is None:
        return re.sub(r"\[Errno \d+\] ", "", str(error))
    words = SYSTEM_ERRORS.get(error.errno, str(error.strerror).lower())
    if not isinstance(error.filename, str | Path):
        return words
    file = Path(error.filename)
    # Path.is_file raises for a name that is too long.
    in_the_way = next((path for path in (file, *file.parents) if os.path.isfile(path)), None)
    if in_the_way and error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"{in_the_way} is a file, not a folder"
    return f"{file}: {words}"


class OnStderr(logging.Handler):
    """Messages as plain lines, above a progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), file=sys.stderr)


def show_logs() -> None:
    """Show what the library logs."""
    logger = logging.getLogger("excise")
    logger.setLevel(logging.INFO)
    logger.handlers = [OnStderr()]


def usage() -> str:
    lines = [f"  excise {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join(["Excise: train language models whose knowledge can be cut out again.", "", *lines, ""]) + (
        "\nexcise COMMAND --help lists the options of a command."
    )


if __name__ == "__main__":
    sys.exit(main())
