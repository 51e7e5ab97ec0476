"""A log on its way to a terminal. Pure.

What a job prints must not act on the terminal of whoever reads it: clear the screen, set its title, fill the
clipboard. Guarantees: what is shown is the log's text with its colours, each line as soon as it has ended, or
has grown too long to wait; nothing that was logged is overwritten; the terminal's own colours are back in the
end. How the log is cut into chunks makes no difference to lines of ordinary length.
"""

import codecs

from rljob_operator.plan.printable import coloured

_LONGEST_WAIT = 64 * 1024
"""Characters of a line that has not ended."""
_RESET = "\x1b[0m"


class TerminalLog:
    """One log, from its beginning to its end."""

    def __init__(self) -> None:
        # Bytes that are no UTF-8 may be controls to a terminal with another encoding.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""
        self._colours = False

    def text(self, chunk: bytes) -> str:
        """What can be shown, now that `chunk` has come."""
        self._begun += self._decoder.decode(chunk)
        # By whole lines, since a sequence may be cut.
        lines, newline, rest = self._begun.rpartition("\n")
        if len(rest) > _LONGEST_WAIT:
            lines, newline, rest = self._begun, "", ""
        self._begun = rest
        return self._shown(lines + newline)

    def end(self) -> str:
        """What is left to be shown when nothing more comes."""
        rest, self._begun = self._begun + self._decoder.decode(b"", final=True), ""
        return self._shown(rest) + (_RESET if self._colours else "")

    def _shown(self, lines: str) -> str:
        # One by one: a sequence that does not end must not swallow the lines that follow.
        shown = "\n".join(coloured(line.rstrip("\r")) for line in lines.split("\n"))
        self._colours = self._colours or "\x1b" in shown
        return shown
