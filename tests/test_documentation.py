"""What the documents promise: the README's commands, the example, and the code that docs/api.md shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from excise.cli.main import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands(text):
    """The `excise` commands in the bash blocks of a document."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [line.removeprefix(".venv/bin/") for block in blocks for line in block.splitlines() if "bin/excise" in line]


@pytest.mark.parametrize(("title", "n"), [("More commands", 5), ("Your own data", 3)])
def test_the_commands_of_the_readme_work(title, n, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = commands(README.split(f"## {title}")[1].split("##")[0])
    assert len(lines) == n
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, line


def test_make_demo_is_excise_demo():
    assert "make demo" in README
    assert "\t$(BIN)/excise demo\n" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_examples_run(script):
    run = subprocess.run([sys.executable, ROOT / "examples" / script], capture_output=True, text=True, check=True)
    before, after = map(float, re.search(r"Spanish: ([\d.]+) before ablation, ([\d.]+) after", run.stdout).groups())
    assert after > before + 0.3


def test_the_api_page_shows_the_example_as_it_is():
    example = (ROOT / "examples" / "one_module.py").read_text(encoding="utf-8")
    assert example in (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_links_between_documents_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
