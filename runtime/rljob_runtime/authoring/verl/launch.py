"""The overrides with which a shell script starts verl.

Guarantees: the script is read and never run. Of a variable that a condition may have changed, only what all
its branches agree on counts. Every word behind the launch is an override or is told as what it is.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rljob_runtime.authoring.verl.shell_words import (
    ArrayWords,
    Operator,
    Parameter,
    Plain,
    ShellError,
    Token,
    Word,
    tokens,
)
from rljob_runtime.authoring.verl.variables import Text, Variables

_LAUNCHED = re.compile(r"(?:verl|recipe|verl_\w+)\.[\w.]*main\w*|(?:\S*/)?main_ppo\w*\.py")
_OVERRIDE = re.compile(r"(?P<mark>~|\+{0,2})(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
_LEADING = ("then", "do", "!", "time", "command", "builtin", "exec")
"""Words before a command that are none of it."""
_OPENING = ("if", "while", "until", "for", "select", "case", "{", "function")
_CLOSING = ("fi", "done", "esac", "}")


@dataclass(frozen=True)
class Override:
    """`key=value`."""

    key: str
    value: str
    line: int
    unknown: str | None = None
    """Why the value is not known, as a clause; then `value` is as it is written."""
    removed: bool = False
    """`~key`: the key is taken out of the configuration."""


@dataclass(frozen=True)
class Remark:
    """Something to tell about a line of the script."""

    line: int
    subject: str
    """What it is about: a key, or a word of the script."""
    words: str
    decide: bool = True
    """Whether the job differs from verl's run in this, unless somebody does something about it."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.words}"


@dataclass(frozen=True)
class Launch:
    """How a script starts verl."""

    line: int
    program: str
    """The module or file that is started."""
    overrides: tuple[Override, ...]
    """In their order; of a key that is given twice the last one counts, as in Hydra."""
    remarks: tuple[Remark, ...]


class NoLaunch(ValueError):
    """The script does not start verl in a way that can be read; `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def read_launch(script: str, given: Mapping[str, str]) -> Launch:
    """The first launch of verl in a script; raises `NoLaunch`. `given`: variables that have a value before
    the script begins."""
    walk = _Walk(Variables.of(given))
    try:
        for command, conditional in _commands(tokens(script)):
            walk.command(command, conditional)
    except ShellError as error:
        raise NoLaunch(error.line, f"not a shell script: {error}") from error
    except RecursionError:
        raise NoLaunch(1, "not a shell script: its expansions are nested too deeply") from None
    if not walk.launches:
        raise NoLaunch(
            1,
            "no launch of verl found: a command such as `python3 -m verl.trainer.main_ppo key=value ...`, "
            "which may stand in a condition or a function, but not in a string or in another file",
        )
    first, *others = walk.launches
    ignored = [
        Remark(other.line, other.program, f"a second launch; only the one of line {first.line} is read")
        for other in others
    ]
    unset = [
        Remark(line, name, "taken as not set: the script's default counts; --set gives it a value", False)
        for name, line in walk.variables.taken_as_unset.items()
    ]
    return replace(first, remarks=(*first.remarks, *walk.remarks, *ignored, *unset))


_Command = list[Word | ArrayWords]


def _commands(stream: Iterator[Token]) -> Iterator[tuple[_Command, bool]]:
    """The simple commands of a script, and whether each runs only if the one before it went well or badly.
    `;;` is a command of its own."""
    words: _Command = []
    conditional = False
    for token in stream:
        if not isinstance(token, Operator):
            words.append(token)
            continue
        if words:
            yield words, conditional
        words = [Word((), token.line)] if token.text == ";;" else []
        conditional = token.text in ("&&", "||")
        if words:
            yield words, False
            words = []
    if words:
        yield words, conditional


_Values = dict[str, tuple[Text, ...]]


@dataclass
class _Block:
    """A part of the script that may not run, or may run in one of several ways."""

    line: int
    before: _Values
    """Of the variables, where it begins."""
    branches: list[_Values]
    complete: bool = False
    """Whether one of its branches always runs."""


class _Walk:
    """Follows a script from top to bottom."""

    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        self.launches: list[Launch] = []
        self.remarks: list[Remark] = []
        self._blocks: list[_Block] = []

    def command(self, words: _Command, conditional: bool) -> None:
        """Take notice of one simple command."""
        first = words[0]
        if conditional:
            self._open(first.line)
            self.command(words, False)
            self._close()
            return
        keyword = _keyword(first)
        if isinstance(first, Word) and not first.parts:
            self._branch()
        elif keyword in _LEADING:
            self._rest(words)
        elif keyword in ("else", "elif"):
            self._branch()
            if keyword == "else" and self._blocks:
                self._blocks[-1].complete = True
            self._rest(words)
        elif keyword in _CLOSING:
            self._close()
        elif keyword in _OPENING:
            self._open(first.line)
            if keyword == "for":
                self._loop_variable(words)
            elif keyword not in ("case", "function", "select"):
                self._rest(words)
        else:
            self._simple(words)

    def _rest(self, words: _Command) -> None:
        if len(words) > 1:
            self.command(words[1:], False)

    # --- blocks

    def _open(self, line: int) -> None:
        self._blocks.append(_Block(line, dict(self.variables.values), []))

    def _branch(self) -> None:
        if self._blocks:
            block = self._blocks[-1]
            block.branches.append(dict(self.variables.values))
            self.variables.values = dict(block.before)

    def _close(self) -> None:
        if not self._blocks:
            return
        block = self._blocks.pop()
        ends = [*block.branches, dict(self.variables.values)]
        if not block.complete:
            ends.append(block.before)
        merged: _Values = {}
        for name in dict.fromkeys(name for end in ends for name in end):
            found = {_told(end[name]): end[name] for end in ends if name in end}
            if len(found) == 1:
                merged[name] = next(iter(found.values()))
            else:
                texts = next(iter(found.values()))
                line = texts[0].line if texts else block.line
                merged[name] = (
                    Text(f"${name}", line, f"{name} depends on the condition of line {block.line}"),
                )
        self.variables.values = merged

    def _loop_variable(self, words: _Command) -> None:
        named = words[1] if len(words) > 1 else None
        name = named.literal if isinstance(named, Word) else None
        if not name or not name.isidentifier():
            return
        values = [
            text for word in words[3:] if isinstance(word, Word) for text in self.variables.fields(word)
        ]
        if len(values) == 1:
            self.variables.values[name] = (values[0],)
        else:
            reason = f"{name} is the variable of the loop of line {words[0].line}"
            self.variables.values[name] = (Text(f"${name}", words[0].line, reason),)

    # --- commands

    def _simple(self, words: _Command) -> None:
        rest = list(words)
        while rest and self._is_assignment(rest[0]):
            rest.pop(0)
        if not rest:
            for word in words:
                self._assign(word)
            return
        name = rest[0].literal if isinstance(rest[0], Word) else None
        if name in _DECLARATIONS:
            for word in rest[1:]:
                if self._is_assignment(word):
                    self._assign(word)
            return
        if name == "unset":
            for word in rest[1:]:
                if isinstance(word, Word) and word.literal:
                    self.variables.values.pop(word.literal, None)
            return
        fields = [text for word in rest if isinstance(word, Word) for text in self.variables.fields(word)]
        self._call(fields, [word for word in rest if isinstance(word, Word)])

    def _is_assignment(self, word: Word | ArrayWords) -> bool:
        if isinstance(word, ArrayWords):
            return True
        return bool(word.parts) and _ASSIGNMENT.match(_lead(word)) is not None

    def _assign(self, word: Word | ArrayWords) -> None:
        values = self.variables.values
        if isinstance(word, ArrayWords):
            texts = tuple(text for each in word.words for text in self.variables.fields(each))
            values[word.name] = (*values.get(word.name, ()), *texts) if word.append else texts
            return
        match = _ASSIGNMENT.match(_lead(word))
        assert match is not None
        text = self.variables.text(word)
        # The name and the sign stand before anything that is expanded.
        text = replace(text, text=text.text[match.end() :])
        old = values.get(match[1], ())
        if match[2] and old:
            text = replace(old[0], text=old[0].text + text.text, unknown=old[0].unknown or text.unknown)
        values[match[1]] = (text,)

    def _call(self, fields: list[Text], words: list[Word]) -> None:
        at = next((index for index, text in enumerate(fields) if _LAUNCHED.fullmatch(text.text)), None)
        if at is not None and (at == 0 or fields[at - 1].text == "-m" or fields[at].text.endswith(".py")):
            self.launches.append(_launch(fields[at], fields[at + 1 :], words))
        elif self.launches and fields and "." in fields[0].text.partition("=")[0] and "=" in fields[0].text:
            ended = f"a command of its own, so not part of the launch of line {self.launches[0].line}: "
            why = "a line before it does not end in a backslash, or a comment stands between"
            self.remarks.append(Remark(fields[0].line, fields[0].text.partition("=")[0], ended + why))


def _launch(program: Text, arguments: list[Text], words: list[Word]) -> Launch:
    overrides: list[Override] = []
    remarks: list[Remark] = []
    for text in arguments:
        match = _OVERRIDE.fullmatch(text.text)
        if text.text.startswith("--"):
            remarks.append(Remark(text.line, text.text, _option(text.text)))
        elif match is None or (match["value"] is None and match["mark"] != "~"):
            why = text.unknown or "no key=value"
            remarks.append(Remark(text.line, text.text, f"left out: {why}"))
        else:
            key = match["key"].replace("/", ".").partition("@")[0]
            value = match["value"] or ""
            overrides.append(Override(key, value, text.line, text.unknown, match["mark"] == "~"))
    remarks += [
        Remark(word.line, "$@", "arguments of the script, which are not known here")
        for word in words
        if any(isinstance(part, Parameter) and part.name in ("@", "*") for part in word.parts)
    ]
    return Launch(program.line, program.text, tuple(overrides), tuple(remarks))


def _option(text: str) -> str:
    if text.startswith(("--config-name", "--config-path", "--config-dir")):
        return "not read: where that file changes a default of verl, set the field here"
    return "an option of Hydra; none here"


def _lead(word: Word) -> str:
    """The text before anything that is expanded."""
    first = word.parts[0]
    return first.text if isinstance(first, Plain) else ""


def _keyword(word: Word | ArrayWords) -> str | None:
    return word.literal if isinstance(word, Word) and word.bare else None


def _told(texts: tuple[Text, ...]) -> tuple[tuple[str, str | None], ...]:
    return tuple((text.text, text.unknown) for text in texts)
