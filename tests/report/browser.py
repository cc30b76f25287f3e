"""What every page must do in a browser."""

from pathlib import Path
from typing import Any


def opened_quietly(browser: Any, path: Path, width: int, scheme: str) -> Any:
    """The page with all its details open: it fits the screen, complains of nothing and asks nobody for anything."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    return page
