"""Text of others for people's terminals: a driver's last words, what a job wrote into its status, its log.

Guarantees: what is left has no control characters but tabs and line ends, and nothing that changes the
direction of text; a terminal prints it and does nothing else. A log keeps its colours.
"""

import re

_SEQUENCES = re.compile(
    # A string for the terminal, such as a title or a link: up to BEL or ST, or the end where that is missing.
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    # Colours, moves of the cursor: parameters, then one letter.
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    # All shorter ones.
    r"|\x1b[ -/]*[0-~]?"
)
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text without escape sequences and control characters. A carriage return is a line end."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text.replace("\r", "\n")))


def coloured(text: str) -> str:
    """`printable`, but for the sequences that set colours and styles."""
    kept, end = [], 0
    text = text.replace("\r", "\n")
    for found in _SEQUENCES.finditer(text):
        kept.append(_CONTROLS.sub("", text[end : found.start()]))
        end = found.end()
        if _COLOURS.fullmatch(found[0]):
            kept.append(found[0])
    return "".join([*kept, _CONTROLS.sub("", text[end:])])
