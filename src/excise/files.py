"""Files that are whole or not there, and their digests."""

import hashlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears, or changes, only when all of it is on the disk."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
