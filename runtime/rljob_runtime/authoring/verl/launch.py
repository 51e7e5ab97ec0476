"""The overrides with which a shell script starts verl.

Guarantees: the script is read and never run. What a condition decides that rests on texts is followed; of a
variable that another condition may have changed, only what all branches agree on counts. Every word behind
the launch is an override or is told as what it is.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rljob_runtime.authoring.verl.branches import Branches
from rljob_runtime.authoring.verl.conditions import Truth, either, is_test, matches, negated, truth_of
from rljob_runtime.authoring.verl.programs import why_not
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
from rljob_runtime.authoring.verl.variables import Text, Variables, joined

_LAUNCHED = re.compile(
    r"(?:verl|recipe|verl_\w+)\.[\w.]*main\w*|(?:\S*/)?"
    r"(?:main_ppo\w*|main_dapo|fully_async_main|main_generation\w*|main_eval)\.py"
)
_OVERRIDE = re.compile(r"(?P<mark>~|\+{0,2})(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
_LEADING = ("!", "time", "command", "builtin", "exec")
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
    """The script starts no training of verl in a way that can be read; `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def read_launch(script: str, given: Mapping[str, str]) -> Launch:
    """The first launch of verl in a script; raises `NoLaunch`. `given`: variables that have a value before
    the script begins."""
    walk = _Walk(Variables.of(given))
    try:
        for command in _commands(tokens(script)):
            walk.command(command)
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
    first = next((launch for launch in walk.launches if why_not(launch.program) is None), None)
    if first is None:
        idle = walk.launches[0]
        raise NoLaunch(idle.line, f"{idle.program}: {why_not(idle.program)}: of it no job can be made")
    ignored = [
        Remark(
            other.line,
            other.program,
            f"not read: {why}" if why else f"a second launch; only the one of line {first.line} is read",
        )
        for other in walk.launches
        if other is not first
        for why in [why_not(other.program)]
    ]
    unset = [
        Remark(line, name, "taken as not set: the script's default counts; --set gives it a value", False)
        for name, line in walk.variables.taken_as_unset.items()
    ]
    return replace(first, remarks=(*first.remarks, *walk.remarks, *ignored, *unset))


@dataclass(frozen=True)
class _Command:
    """A simple command, or a part of one that a keyword begins."""

    words: list[Word | ArrayWords]
    before: str
    """The operator between it and the command before it."""
    after: str
    """The operator behind it."""


def _commands(stream: Iterator[Token]) -> Iterator[_Command]:
    """The simple commands of a script; one without words for each `;;`."""
    words: list[Word | ArrayWords] = []
    before = "\n"
    for token in stream:
        if not isinstance(token, Operator):
            words.append(token)
            continue
        if words:
            yield _Command(words, before, token.text)
            words = []
            before = token.text
        elif token.text != "\n":
            before = token.text
        if token.text == ";;":
            yield _Command([], token.text, token.text)
    if words:
        yield _Command(words, before, "\n")


class _Walk:
    """Follows a script from top to bottom."""

    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        self.launches: list[Launch] = []
        self.remarks: list[Remark] = []
        self._branches = Branches(variables)
        self._last: Truth = None
        """What the last command said, as far as it is known."""
        self._pattern: Truth = False
        """In a `case`, what the patterns of a branch said so far; None and True as in `Truth`."""
        self._in_pattern = False
        self._after = ""
        """The operator behind the command."""

    def command(self, command: _Command) -> None:
        """Take notice of one simple command."""
        words, self._after = command.words, command.after
        if not words:
            # Outside a `case` it ends nothing.
            if self._branches.subject is not None:
                # The next branch is one once its pattern has matched.
                self._branches.branch(False, in_condition=True)
                self._in_pattern = True
        elif self._in_pattern and _keyword(words[0]) != "esac":
            self._take_pattern(words)
        elif command.before in ("&&", "||") and self._branches.in_condition:
            self._branches.narrow(command.before, self._truth(words))
            self._rest(words)
        elif command.before in ("&&", "||"):
            truth = self._last if command.before == "&&" else negated(self._last)
            self._branches.open(words[0].line, truth)
            self._plain(words)
            self._branches.close()
            # Where the one before it did not let it run, that one's end is still the last.
            self._last = self._truth(words) if truth is True else self._last if truth is False else None
        else:
            self._plain(words)
            self._last = self._truth(words)

    def _plain(self, words: list[Word | ArrayWords]) -> None:
        keyword, rest = _keyword(words[0]), words[1:]
        if keyword in ("then", "do"):
            self._branches.begin()
            self._rest(rest)
        elif keyword in _LEADING:
            self._rest(rest)
        elif keyword == "else":
            self._branches.branch(True)
            self._rest(rest)
        elif keyword == "elif":
            self._branches.branch(self._truth(rest), in_condition=True)
            self._rest(rest)
        elif keyword in _CLOSING:
            self._in_pattern = False
            self._branches.close()
        elif keyword in _OPENING:
            self._open(str(keyword), words)
        elif not self._branches.dead:
            self._simple(words)

    def _rest(self, words: list[Word | ArrayWords]) -> None:
        if words:
            self._plain(words)

    # --- blocks

    def _open(self, keyword: str, words: list[Word | ArrayWords]) -> None:
        line, rest = words[0].line, words[1:]
        if keyword == "if":
            self._branches.open(line, self._truth(rest), in_condition=True)
            self._rest(rest)
        elif keyword == "case":
            subject = (
                self.variables.text(rest[0]) if rest and isinstance(rest[0], Word) else Text("", line, "")
            )
            self._branches.open(line, False, in_condition=True, subject=subject)
            self._in_pattern, self._pattern = True, False
            # The first pattern may stand in the same line.
            if rest[2:]:
                self._take_pattern(rest[2:])
        elif keyword != "function" or _keyword(words[-1]) == "{":
            self._branches.open(line, None)
            if keyword == "for":
                self._loop_variable(words)
            elif keyword in ("{", "while", "until"):
                self._rest(rest)

    def _take_pattern(self, words: list[Word | ArrayWords]) -> None:
        subject = self._branches.subject
        for word in words:
            if isinstance(word, Word) and subject is not None:
                self._pattern = either(self._pattern, matches(subject, self.variables.text(word)))
        if self._after == ")":
            self._branches.narrow("||", self._pattern)
            self._branches.begin()
            self._in_pattern, self._pattern = False, False

    def _truth(self, words: list[Word | ArrayWords]) -> Truth:
        """What a command says as a condition."""
        names = [word.literal for word in words[:2] if isinstance(word, Word)]
        if not any(is_test(name) for name in names):
            # Of other commands only an assignment is known to go well.
            return True if words and all(map(self._is_assignment, words)) else None
        return truth_of([self.variables.text(word) for word in words if isinstance(word, Word)])

    def _loop_variable(self, words: list[Word | ArrayWords]) -> None:
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

    def _simple(self, words: list[Word | ArrayWords]) -> None:
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
            before = values.get(word.name, ()) if word.append else ()
            values[word.name] = (*before, *texts)
            return
        match = _ASSIGNMENT.match(_lead(word))
        assert match is not None
        text = self.variables.text(word)
        # The name and the sign stand before anything that is expanded.
        text = text.part(match.end())
        old = values.get(match[1], ())
        if match[2] and old:
            head = old[0]
            if head.assumption:
                head = head.doubted(f"it is added to what may not be there: {head.assumption}")
            text = replace(joined(head, text), line=text.line)
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
        elif match is not None and re.search("[/@]", match["key"]):
            remarks.append(
                Remark(text.line, text.text, "it chooses a file of verl's configuration: not read")
            )
        elif match is None or (match["value"] is None and match["mark"] != "~"):
            why = text.unknown or "no key=value"
            remarks.append(Remark(text.line, text.text, f"left out: {why}"))
        else:
            key = match["key"]
            value = match["value"] or ""
            overrides.append(Override(key, value, text.line, text.unknown, match["mark"] == "~"))
            if text.unknown is None and text.assumption is not None:
                remarks.append(Remark(text.line, text.text, f"taken as it is: {text.assumption}", False))
    remarks += [
        Remark(word.line, "$@", "arguments of the script, which are not known here", False)
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
