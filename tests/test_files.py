"""Folders are named by as little of their paths as tells them apart."""

from pathlib import Path

import pytest

from excise.files import told_apart


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["/x/a", "/x/b"], ["a", "b"]),
        (["/x/a", "/y/a"], ["x/a", "y/a"]),
        (["/a/b", "/zz/a/b"], ["/a/b", "zz/a/b"]),
        (["/x/a", "/x/a"], ["a", "a"]),
    ],
)
def test_a_folder_has_the_shortest_name_that_no_other_has(folders, names):
    assert told_apart([Path(folder) for folder in folders]) == names
