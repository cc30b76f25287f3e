"""Results that are older than the names of their runs: names.json says, by today's names, what they are called there."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NAMES = "names.json"


@dataclass(frozen=True)
class OlderNames:
    """What the runs and methods in a folder of results are called, by their names of today where these are others."""

    runs: Mapping[str, str] = field(default_factory=dict)
    """Folders in `runs`."""
    methods: Mapping[str, str] = field(default_factory=dict)
    """Keys in rates.json."""


def older_names(results: Path) -> OlderNames:
    """The names that a folder of results notes, or none."""
    file = results / NAMES
    if not file.exists():
        return OlderNames()
    try:
        return OlderNames(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file} does not say what runs are called here ({error}); take it from where it came"
        ) from None


def older_runs(results: Path) -> Mapping[str, str]:
    """The folders of the runs that a folder of results notes, all of which must be there."""
    runs = older_names(results).runs
    for run, folder in runs.items():
        if not (results / "runs" / folder).is_dir():
            raise ValueError(
                f"{results / NAMES} says that {run} is in runs/{folder}, which is not there; give it back, or take the "
                "line out, and the run is done again"
            )
    return runs
