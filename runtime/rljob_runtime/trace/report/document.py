"""A page in one file: its style and script are within it, and it needs no server."""

from html import escape
from importlib.resources import files


def document(title: str, body: str) -> str:
    """The page as HTML; `body` is markup."""
    parts = files("rljob_runtime.trace.report")
    style, script = (parts.joinpath(file).read_text(encoding="utf-8") for file in ("page.css", "page.js"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f"{body}</main><script>{script}</script></body></html>\n"
    )
