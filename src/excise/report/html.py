"""The pieces that every page is made of. A page is self-contained: nothing of it comes from anywhere else."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

LANGUAGE_CODES = {"english": "en", "spanish": "es"}


def document(title: str, style: str, body: str, script: str = "") -> str:
    """A whole page."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · Excise</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
{body}</main>
{script}</body>
</html>
"""


def sample(language: str, prompt: str, columns: Sequence[tuple[str, str]]) -> str:
    """An opening with its continuations side by side."""
    code = LANGUAGE_CODES.get(language, "und")
    return f"""<article class="sample">
<h3>{escape(f"{language} opening".strip().capitalize())}</h3>
<div class="columns">
{join(_continuation(title, prompt, text, code) for title, text in columns)}</div>
</article>"""


def _continuation(title: str, prompt: str, text: str, code: str) -> str:
    story = escape(text) if text.strip() else ' <span class="quiet">(it wrote nothing)</span>'
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<blockquote lang="{code}"><mark>{escape(prompt)}</mark>{story}</blockquote></figure>'
    )


def definitions(values: Mapping[str, str]) -> str:
    return join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in values.items())


def percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def join(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
