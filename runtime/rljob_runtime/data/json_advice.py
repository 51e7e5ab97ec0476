"""What to do about a line of a JSON Lines file that is no object, by its text. Pure."""

import json
import re
from contextlib import suppress

_NO_NUMBER = re.compile(r"\bNaN\b|\bInfinity\b")
"""What Python writes, and reads, and JSON lacks."""
_LAST_COMMA = re.compile(r",\s*[}\]]")


def advice(line: str) -> str:
    """The end of a sentence about the line; empty where nothing is known."""
    text = line.strip()
    if text.startswith("["):
        return ": of a list of rows, write each row on a line of its own, as jq -c '.[]' does"
    if "{" not in text:
        return ": a file of JSON Lines has an object, {...}, on each line"
    if text.endswith(",") and _is_object(text[:-1]):
        return ": take away the comma behind the object, which stands alone on its line"
    if _NO_NUMBER.search(text) and _is_object(text):
        return ": JSON has no NaN and no Infinity, write null"
    if text.startswith("{'"):
        return ": JSON has double quotes, as json.dumps writes them"
    if _LAST_COMMA.search(text) and _is_object(_LAST_COMMA.sub(lambda found: found[0][1:], text)):
        return ": take away the comma before the closing bracket"
    if text.startswith("{") and "}" not in text:
        return (
            ": the object has no end on this line: write each row on a line of its own, as jq -c . does (or "
            "copy the file again, where it is cut short)"
        )
    return ""


def _is_object(text: str) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(text), dict)
    return False
