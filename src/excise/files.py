"""Files and folders that are whole or not there, also after a loss of power, and their digests."""

import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

PART = ".part"
"""Ends the name of a file that is being written."""
FOLDERS_UNKNOWN = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears, or changes, only when all of it is on the disk."""
    temporary = path.with_name(path.name + PART)
    temporary.write_bytes(content)
    flush(temporary)
    move(temporary, path)


def flush(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems over a network keep folders by themselves and refuse to be asked
        if error.errno not in FOLDERS_UNKNOWN or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def move(source: Path, target: Path) -> None:
    """Rename within a folder what is on the disk, and wait until its new name is."""
    os.replace(source, target)
    flush(target.parent)


def make_folder(path: Path) -> None:
    """Make a folder where there is none, with those that it is in, and wait until it is on the disk."""
    if not path.parent.is_dir():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    flush(path.parent)


def remove_folder(path: Path) -> None:
    """Delete a folder, of which no part is ever found under its name."""
    hidden = path.with_name(f".{path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    move(path, hidden)
    shutil.rmtree(hidden)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def told_apart(folders: Sequence[Path]) -> list[str]:
    """The names of folders, each with as much of its path in front as tells it from the others."""
    paths = [folder.resolve() for folder in folders]

    def shortest(path: Path) -> str:
        others = {other.parts for other in paths if other != path}
        ends = (n for n in range(1, len(path.parts) + 1) if all(other[-n:] != path.parts[-n:] for other in others))
        return str(Path(*path.parts[-next(ends) :]))

    return [shortest(path) for path in paths]
