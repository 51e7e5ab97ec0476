"""Text that a model or somebody else wrote, for people's terminals and pages.

Guarantees: what comes out has no control characters but line ends and tabs, and nothing that changes the
direction of text; what was there instead can be read, as \\x1b for example.
"""

import re

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


def visible_json(text: str) -> str:
    """JSON with these characters, which stand within strings alone, escaped: it means the same."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def visible(text: str) -> str:
    """The text with its control characters as Python would write them."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
