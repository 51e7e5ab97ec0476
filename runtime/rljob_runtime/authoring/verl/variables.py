"""What the words of a shell script stand for, as far as that can be known without running it.

Guarantees: a text that rests on a command, on the environment or on a condition is never guessed: it is
`Known` to be unknown, with the reason and the line where that began.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from rljob_runtime.authoring.verl.arithmetic import ArithmeticFault, evaluate
from rljob_runtime.authoring.verl.shell_words import Arithmetic, Command, Parameter, Part, Plain, Word

_MOST_TEXT = 100_000
"""Characters of one value: `x=$x$x` doubles."""


@dataclass(frozen=True)
class Gap:
    """A part of a text that is not known."""

    start: int
    end: int
    """Its characters: from `start` to `end`, without that one."""
    why: str
    """Why it is unknown, as a clause."""


@dataclass(frozen=True)
class Text:
    """A text of the script after expansion."""

    text: str
    """Where a part of it is unknown, that part stands as it is written."""
    line: int
    """Line, from 1, of the word that it comes from."""
    unknown: str | None = None
    """Why a part is unknown, as a clause; None where all is known."""
    assumption: str | None = None
    """What must be so for the text to be right, as a clause: a variable in it is set under a condition alone.
    None where it is right in any case."""
    gaps: tuple[Gap, ...] = ()
    """The parts that are unknown, in their order. None where `unknown` is of the whole text."""

    @property
    def certain(self) -> bool:
        """Whether the text is known in any case, so that conditions may rest on it."""
        return self.unknown is None and self.assumption is None

    def part(self, start: int, end: int | None = None) -> "Text":
        """The characters from `start` to `end`; a gap among them must lie there as a whole. A text that is
        unknown as a whole stays so."""
        end = len(self.text) if end is None else end
        cut = replace(self, text=self.text[start:end])
        if not self.gaps:
            return cut
        gaps = tuple(
            Gap(gap.start - start, gap.end - start, gap.why)
            for gap in self.gaps
            if start <= gap.start and gap.end <= end
        )
        return replace(cut, gaps=gaps, unknown=gaps[0].why if gaps else None)

    def doubted(self, why: str) -> "Text":
        """The same words, each of which is unknown."""
        gaps = tuple(Gap(*word.span(), why) for word in re.finditer(r"\S+", self.text))
        return Text(self.text, self.line, why, gaps=gaps)


@dataclass
class Variables:
    """The variables of a script at one place of it."""

    values: dict[str, tuple[Text, ...]] = field(default_factory=dict)
    """A plain variable has one text, an array any number."""
    taken_as_unset: dict[str, int] = field(default_factory=dict)
    """Variables of the environment for which the script's own default is taken, and the line."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Variables":
        """Variables that have a value before the script begins."""
        return cls({name: (Text(text, 0),) for name, text in given.items()})

    def fields(self, word: Word) -> list[Text]:
        """The words that one word becomes: none, one, or several where an array or a variable that holds
        blanks stands in it without quotes."""
        done: list[Text] = []
        current: Text | None = None
        for part in word.parts:
            for number, (piece, splits) in enumerate(self._pieces(part, word.line)):
                # The words of an array are words of their own.
                if number and current is not None:
                    done.append(current)
                    current = None
                for index, text in enumerate(_split(piece) if splits else [piece]):
                    if index and current is not None:
                        done.append(current)
                        current = None
                    current = text if current is None else joined(current, text)
        if current is not None:
            done.append(current)
        return done

    def text(self, word: Word) -> Text:
        """The text of a word that is not split: the value of an assignment."""
        result = Text("", word.line)
        for part in word.parts:
            for number, (piece, _) in enumerate(self._pieces(part, word.line)):
                result = joined(result, Text(" ", word.line)) if number else result
                result = joined(result, piece)
        return result

    def _pieces(self, part: Part, line: int) -> Iterator[tuple[Text, bool]]:
        """The texts that a part becomes, and whether each is split at blanks."""
        match part:
            case Plain():
                yield Text(part.text, line), False
            case Command():
                yield (
                    Text(part.raw, line, f"{part.raw} is what a command prints, and no command is run"),
                    False,
                )
            case Arithmetic():
                yield self._arithmetic(part, line), False
            case Parameter():
                for text in self._parameter(part, line):
                    yield text, not part.quoted and part.operator != "[@]"

    def _arithmetic(self, part: Arithmetic, line: int) -> Text:
        expression = self.text(part.expression)
        if expression.unknown is not None:
            return Text(part.raw, line, expression.unknown)
        assumptions = [expression.assumption]

        def number(name: str) -> str:
            texts = self.values.get(name)
            assumptions.append(texts[0].assumption if texts else None)
            return self._number(name)

        try:
            value = str(evaluate(expression.text, number))
            return Text(value, line, assumption=next(filter(None, assumptions), None))
        except ArithmeticFault as fault:
            return Text(part.raw, line, f"{part.raw} cannot be computed: {fault}")

    def _number(self, name: str) -> str:
        texts = self.values.get(name)
        if not texts:
            raise ArithmeticFault(_unset(name))
        if texts[0].unknown is not None:
            raise ArithmeticFault(texts[0].unknown)
        return texts[0].text

    def _parameter(self, part: Parameter, line: int) -> tuple[Text, ...]:
        name, operator = part.name, part.operator
        texts = self.values.get(name)
        if name in ("@", "*") and texts is None:
            return ()
        if not name or operator == "unknown":
            return (Text(part.raw, line, f"{part.raw} is a form of expansion that is not read"),)
        if operator not in ("", "[@]") and texts and (assumption := texts[0].assumption):
            return (Text(part.raw, line, f"it may have its default: {assumption}"),)
        if operator in (":-", "-", ":=", "="):
            if texts is None or (operator[0] == ":" and _empty(texts)):
                if texts is None:
                    self.taken_as_unset.setdefault(name, line)
                default = replace(self.text(part.word), line=line)
                if "=" in operator:
                    self.values[name] = (default,)
                return (default,)
        elif operator == ":+" and texts and texts[0].unknown is not None:
            return (Text(part.raw, line, texts[0].unknown),)
        elif operator in (":+", "+"):
            there = texts is not None and not (operator[0] == ":" and _empty(texts))
            return (replace(self.text(part.word), line=line),) if there else (Text("", line),)
        if texts is None:
            return (Text(part.raw, line, _unset(name)),)
        # The words of an array keep their lines: an override may stand in one.
        return texts if operator == "[@]" else tuple(replace(text, line=line) for text in texts[:1])


def _unset(name: str) -> str:
    if name.isdigit():
        return f"${name} is an argument of the script"
    return f"{name} has no value in the script: give it with --set {name}=VALUE"


def _empty(texts: tuple[Text, ...]) -> bool:
    return all(not text.text and text.unknown is None for text in texts)


def _split(text: Text) -> list[Text]:
    """A text at its blanks; what is unknown stays whole, with the word that it is in."""
    if text.unknown is not None and not text.gaps:
        return [text]
    seen = text.text
    for gap in text.gaps:
        seen = seen[: gap.start] + "?" * (gap.end - gap.start) + seen[gap.end :]
    return [text.part(*word.span()) for word in re.finditer(r"\S+", seen)]


def _gaps(text: Text, start: int) -> tuple[Gap, ...]:
    """Those of a text that begins at `start`."""
    if text.unknown is None:
        return ()
    gaps = text.gaps or (Gap(0, len(text.text), text.unknown),)
    return tuple(Gap(gap.start + start, gap.end + start, gap.why) for gap in gaps)


def joined(first: Text, second: Text) -> Text:
    """One text behind another, in the line of the first."""
    text = first.text + second.text
    if len(text) > _MOST_TEXT:
        return Text(text[:80], first.line, f"it has more than {_MOST_TEXT} characters")
    assumption = first.assumption or second.assumption
    gaps = _gaps(first, 0) + _gaps(second, len(first.text))
    return Text(text, first.line, gaps[0].why if gaps else None, assumption, gaps)
