"""The words of a shell script, with their lines: quotes, variables, arithmetic, arrays, comments,
redirections and here-documents as bash reads them.

Guarantees: nothing is expanded or run; every character of the script is passed once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(r"[A-Za-z_]\w*|[0-9]+|[@*#?$!-]")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=$")
_REDIRECTION = re.compile(r"[0-9]*(?:&>>|&>|>>|>&|<&|<>|>\||<<<|<<-|<<|>|<)")
_ENDS = frozenset(" \t\n;&|()<>")
"""Characters that end a word outside quotes."""
_OPERATORS = (";;", "&&", "||", "|&", ";", "&", "|", "(", ")", "\n")


class ShellError(ValueError):
    """The text is no shell script; `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


@dataclass(frozen=True)
class Plain:
    """Text that stands for itself."""

    text: str


@dataclass(frozen=True)
class Parameter:
    """`$name` or `${name...}`."""

    raw: str
    """As it is written."""
    name: str
    operator: str
    """What follows the name: empty, `[@]`, `:-`, `-`, `:=`, `=`, `:+`, `+`, `:?`, `?`, or one that is not
    known here."""
    word: "Word"
    """What follows the operator."""
    quoted: bool


@dataclass(frozen=True)
class Arithmetic:
    """`$((...))`."""

    raw: str
    expression: "Word"


@dataclass(frozen=True)
class Command:
    """`$(...)`, backquotes or `<(...)`: what a command prints."""

    raw: str


Part: TypeAlias = Plain | Parameter | Arithmetic | Command


@dataclass(frozen=True)
class Word:
    """One word, before expansion."""

    parts: tuple[Part, ...]
    line: int
    """Where it begins, from 1."""
    bare: bool = False
    """Whether all of it stands outside quotes, so that it may be a keyword."""

    @property
    def literal(self) -> str | None:
        """Its text; None where a part of it must be expanded first."""
        if all(isinstance(part, Plain) for part in self.parts):
            return "".join(part.text for part in self.parts if isinstance(part, Plain))
        return None


@dataclass(frozen=True)
class ArrayWords:
    """`name=(...)` or `name+=(...)`."""

    name: str
    append: bool
    words: tuple[Word, ...]
    line: int


@dataclass(frozen=True)
class Operator:
    """What stands between commands; a newline is one."""

    text: str
    line: int


Token: TypeAlias = Word | ArrayWords | Operator


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a script, redirections left out; raises `ShellError`."""
    return _Reader(text.replace("\r\n", "\n")).tokens()


class _Reader:
    def __init__(self, text: str, line: int = 1) -> None:
        self._text = text
        self._at = 0
        self._line = line
        self._documents: list[tuple[str, bool]] = []
        """Ends of here-documents that begin with the next line, and whether tabs go before them."""

    def tokens(self) -> Iterator[Token]:
        while self._blank():
            line = self._line
            operator = next((each for each in _OPERATORS if self._text.startswith(each, self._at)), None)
            redirected = _REDIRECTION.match(self._text, self._at)
            if redirected and not self._process_substitution():
                self._redirect(redirected[0])
            elif operator is not None:
                self._take(len(operator))
                yield Operator(operator, line)
                if operator == "\n":
                    self._skip_documents()
            else:
                yield self._word_or_array()

    # --- moving on

    def _take(self, count: int) -> str:
        taken = self._text[self._at : self._at + count]
        self._at += count
        self._line += taken.count("\n")
        return taken

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _more(self) -> bool:
        return self._at < len(self._text)

    def _blank(self) -> bool:
        """Pass blanks, continued lines and comments; whether anything is left."""
        while self._more():
            if self._peek("\\\n"):
                self._take(2)
            elif self._text[self._at] in " \t":
                self._take(1)
            elif self._peek("#"):
                end = self._text.find("\n", self._at)
                self._take((end if end >= 0 else len(self._text)) - self._at)
            else:
                return True
        return False

    def _process_substitution(self) -> bool:
        return self._peek("<(") or self._peek(">(")

    def _redirect(self, operator: str) -> None:
        self._take(len(operator))
        if not self._blank() or self._peek("\n"):
            raise ShellError(self._line, f"{operator} has no file behind it")
        word = self._word_or_array()
        if operator.lstrip("0123456789") in ("<<", "<<-") and isinstance(word, Word):
            self._documents.append((word.literal or "", operator.endswith("-")))

    def _skip_documents(self) -> None:
        for end, tabs in self._documents:
            while self._more():
                stop = self._text.find("\n", self._at)
                line = self._take((stop + 1 if stop >= 0 else len(self._text)) - self._at).rstrip("\n")
                if (line.lstrip("\t") if tabs else line) == end:
                    break
        self._documents = []

    # --- words

    def _word_or_array(self) -> Word | ArrayWords:
        line, start = self._line, self._at
        parts: list[Part] = []
        bare = True
        while self._more():
            character = self._text[self._at]
            if self._process_substitution():
                parts.append(Command(self._parenthesised(1)))
            elif character == "(" and (array := _ARRAY.fullmatch(self._text[start : self._at])):
                return self._array(array[1], bool(array[2]), line)
            elif character in _ENDS:
                break
            elif character in "'\"\\" or self._peek("$'") or self._peek('$"'):
                bare = False
                self._quoted(parts)
            elif character in "$`":
                parts.append(self._expansion(quoted=False))
            else:
                parts.append(Plain(self._take(1)))
        if self._at == start:
            raise ShellError(line, f"{self._text[start]!r} is not expected here")
        return Word(_joined(parts), line, bare)

    def _array(self, name: str, append: bool, line: int) -> ArrayWords:
        self._take(1)
        words: list[Word] = []
        while True:
            while self._blank() and self._peek("\n"):
                self._take(1)
            if not self._more():
                raise ShellError(line, f"the ( of {name}= is not closed")
            if self._peek(")"):
                self._take(1)
                return ArrayWords(name, append, tuple(words), line)
            word = self._word_or_array()
            if isinstance(word, Word):
                words.append(word)

    def _quoted(self, parts: list[Part]) -> None:
        """Take one quoted piece, or an escaped character."""
        line = self._line
        if self._peek("\\"):
            escaped = self._take(2)[1:]
            parts.append(Plain("" if escaped == "\n" else escaped))
            return
        if self._peek("$"):
            self._take(1)  # $'...' is taken for '...', and $"..." for "..."
        quote = self._take(1)
        if quote == "'":
            end = self._text.find("'", self._at)
            if end < 0:
                raise ShellError(line, "the ' that begins here is not closed")
            parts.append(Plain(self._take(end - self._at)))
        else:
            parts.extend(self._until('"', line, quoted=True))
            if not parts:
                parts.append(Plain(""))
        self._take(1)

    def _until(self, end: str, line: int, quoted: bool) -> Iterator[Part]:
        """Parts before `end`, which is left. Within double quotes a backslash escapes few characters."""
        while not self._peek(end):
            if not self._more():
                raise ShellError(line, f"there is no {end} for what begins here")
            if self._peek("\\") and (not quoted or self._text[self._at + 1 : self._at + 2] in '$`"\\\n'):
                escaped = self._take(2)[1:]
                yield Plain("" if escaped == "\n" else escaped)
            elif self._text[self._at] in "$`" and not self._peek("$'"):
                yield self._expansion(quoted)
            elif not quoted and self._text[self._at] in "'\"":
                inner: list[Part] = []
                self._quoted(inner)
                yield from inner
            else:
                yield Plain(self._take(1))

    def _expansion(self, quoted: bool) -> Part:
        start, line = self._at, self._line
        if self._peek("`"):
            self._take(1)
            end = self._text.find("`", self._at)
            if end < 0:
                raise ShellError(line, "the ` that begins here is not closed")
            self._take(end + 1 - self._at)
            return Command(self._text[start : self._at])
        if self._peek("$(("):
            raw = self._parenthesised(1)
            if raw.endswith("))"):
                return Arithmetic(raw, _parts_of(raw[3:-2], line))
            return Command(raw)
        if self._peek("$("):
            return Command(self._parenthesised(1))
        if self._peek("${"):
            return self._braced(quoted)
        self._take(1)
        name = _PARAMETER.match(self._text, self._at)
        if name is None:
            return Plain("$")
        # `$10` is `$1` and a 0.
        self._take(1 if name[0].isdigit() else len(name[0]))
        raw = self._text[start : self._at]
        return Parameter(raw, raw[1:], "", Word((), line), quoted)

    def _braced(self, quoted: bool) -> Part:
        start, line = self._at, self._line
        self._take(2)
        name = _PARAMETER.match(self._text, self._at)
        shown = name[0] if name else ""
        self._take(len(shown))
        operator = next(
            (each for each in ("[@]", "[*]", ":-", ":=", ":+", ":?", "-", "=", "+", "?") if self._peek(each)),
            "",
        )
        self._take(len(operator))
        rest = Word(_joined(list(self._until("}", line, quoted=False))), line)
        self._take(1)
        raw = self._text[start : self._at]
        if operator in ("", "[@]", "[*]") and rest.parts:
            operator = "unknown"
        return Parameter(raw, shown, "[@]" if operator == "[*]" else operator, rest, quoted)

    def _parenthesised(self, before: int) -> str:
        """Take `before` characters and all up to the closing parenthesis, quotes within respected."""
        start, line, depth = self._at, self._line, 0
        self._take(before)
        while self._more():
            if self._text[self._at] in "'\"\\":
                self._quoted([])
                continue
            character = self._take(1)
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth == 0:
                return self._text[start : self._at]
        raise ShellError(line, "the ( that begins here is not closed")


def _parts_of(text: str, line: int) -> Word:
    reader = _Reader(text + "\0", line)
    return Word(_joined(list(reader._until("\0", line, quoted=True))), line)


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    """The parts, with neighbouring plain ones as one."""
    result: list[Part] = []
    for part in parts:
        if isinstance(part, Plain) and result and isinstance(result[-1], Plain):
            result[-1] = Plain(result[-1].text + part.text)
        else:
            result.append(part)
    return tuple(result)
