"""The variables of a script where some of it may not run.

Guarantees: after a condition a variable has the value that all branches agree on which may have run; where
they differ it is not known, and says by which condition. A variable that only some of the branches set, all
alike, has that value, and says that this is assumed: a script that uses it elsewhere would have none.
"""

from dataclasses import dataclass, field, replace

from rljob_runtime.authoring.verl.conditions import Truth, both, either
from rljob_runtime.authoring.verl.variables import Text, Variables

_Values = dict[str, tuple[Text, ...]]


@dataclass
class _Block:
    """A part of a script that runs in one of several ways, or not at all."""

    line: int
    before: _Values
    """Of the variables, where it begins."""
    truth: Truth
    """Whether the branch that is read now runs, if none before it does."""
    subject: Text | None = None
    """Of a `case`: what its patterns are compared with."""
    in_condition: bool = False
    """Whether what is read now is a condition and no branch."""
    ends: list[_Values] = field(default_factory=list)
    """Of each branch that may have run."""
    decided: bool = False
    """Whether one of these branches runs for certain, so that no other does."""

    @property
    def dead(self) -> bool:
        """Whether what is read now runs never."""
        return self.decided or (self.truth is False and not self.in_condition)


class Branches:
    """Blocks that are open at one place of a script."""

    def __init__(self, variables: Variables) -> None:
        self._variables = variables
        self._blocks: list[_Block] = []

    @property
    def dead(self) -> bool:
        """Whether what is read now runs never."""
        return any(block.dead for block in self._blocks)

    @property
    def in_condition(self) -> bool:
        """Whether what is read now is the condition of a block."""
        return bool(self._blocks) and self._blocks[-1].in_condition

    @property
    def subject(self) -> Text | None:
        """What the patterns of the block are compared with, where it is a `case`."""
        return self._blocks[-1].subject if self._blocks else None

    def open(self, line: int, truth: Truth, in_condition: bool = False, subject: Text | None = None) -> None:
        """A block begins, the first branch of which runs if `truth`."""
        self._blocks.append(_Block(line, dict(self._variables.values), truth, subject, in_condition))

    def narrow(self, operator: str, truth: Truth) -> None:
        """The condition goes on after `&&` or `||`."""
        block = self._blocks[-1]
        block.truth = (both if operator == "&&" else either)(block.truth, truth)

    def begin(self) -> None:
        """The condition has ended, and its branch begins."""
        if self._blocks:
            self._blocks[-1].in_condition = False

    def branch(self, truth: Truth, in_condition: bool = False) -> None:
        """Another branch begins, which runs if `truth` and no other one before it does."""
        if self._blocks:
            self._end_branch()
            self._blocks[-1].truth = truth
            self._blocks[-1].in_condition = in_condition

    def close(self) -> None:
        """The block ends."""
        if not self._blocks:
            return
        self._end_branch()
        block = self._blocks.pop()
        if not block.decided:
            block.ends.append(block.before)
        self._variables.values = _merged(block.ends, block.line)

    def _end_branch(self) -> None:
        block = self._blocks[-1]
        if not block.dead:
            block.ends.append(dict(self._variables.values))
            block.decided = block.truth is True
        self._variables.values = dict(block.before)


def _merged(ends: list[_Values], line: int) -> _Values:
    merged: _Values = {}
    for name in dict.fromkeys(name for end in ends for name in end):
        found = {
            tuple((text.text, text.unknown, text.gaps, text.assumption) for text in end[name]): end[name]
            for end in ends
            if name in end
        }
        texts = next(iter(found.values()))
        if len(found) > 1:
            first = next((each[0].line for each in found.values() if each), line)
            texts = (Text(f"${name}", first, f"{name} depends on the condition of line {line}"),)
        elif not all(name in end for end in ends):
            alone = f"{name} is set under the condition of line {line} alone"
            texts = tuple(replace(text, assumption=text.assumption or alone) for text in texts)
        merged[name] = texts
    return merged
