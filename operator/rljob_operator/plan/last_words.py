"""What a container said last, as far as it tells people why it ended.

Guarantees: of Python's and C++'s stacks the error alone is left; where Ray's head ended since one of Ray's
processes did, that process is named and not quoted, or, where what follows has pushed its name out of the
message, that is said; anything else is as the container said it, cut at its begin.
"""

import re

from rljob_operator.plan.conditions import tail
from rljob_operator.plan.printable import printable

# `ray start --block`, in the words of its releases: a list, then since 2.5x the end of each process's log,
# of which the last line alone may have fitted into the container's message.
_RAY_PROCESS = re.compile(
    r"(?P<listed>\w+) \[exit code=(?P<code>-?\d{1,10})\]"
    # With "(signal 9)" behind a code, and several codes where there were several such processes.
    r"|END (?P<quoted>\w+)\.(?:out|err) tail \(exit code\(s\)=(?P<codes>.*?)\) -----"
)
_CODE = re.compile(r"(?<!\d)-?\d{1,10}(?![\d)])")
# What Ray's other processes say while `ray start` ends them, with or without a stack.
_AFTERMATH = re.compile(
    r"Parent process \d+ died\. Exiting|Raylet is terminated\.|Failed to read Raylet logs|raylet\.out'"
)
ONE_ENDED = "a process of Ray's in it ended, and Ray then ended the others; the container's log names it"
_STACK_BEGINS = re.compile(
    r"^\s*(?:Traceback \(most recent call last\):|\*\*\* StackTrace Information \*\*\*)"
)
# A frame and its line of code; underlines below that; a C++ frame, with its address or in a library.
_FRAME = re.compile(r"^(?:\s+|.*\[0x[0-9a-f]+\]|\S+\.so[.\d]*\()")


def last_words(text: str, told_to_end: bool = False) -> str:
    """The last words in one paragraph. `told_to_end`: the container was, and Ray's processes in the pod were
    too, so that what they say of each other's end tells nothing."""
    clean = printable(text)
    ended = {
        found["listed"] or found["quoted"]: found["code"] or found["codes"]
        for found in _RAY_PROCESS.finditer(clean)
    }
    if ended and not told_to_end:
        return ", ".join(f"Ray's {name} {_ends(codes)}" for name, codes in ended.items())
    lines = _without_stacks(clean.splitlines())
    kept = [line for line in lines if not _AFTERMATH.search(line)]
    if told_to_end:
        return tail("\n".join(kept))
    if len(kept) < len(lines):
        return tail("\n".join([*kept, ONE_ENDED]))
    return tail("\n".join(kept) or clean)


def _ends(codes: str) -> str:
    """How the processes ended that Ray gives these codes of: a negative one is a signal's."""
    each = [int(code) for code in _CODE.findall(codes)]
    told = [f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}" for code in each]
    return " and ".join(told) or "ended"


def _without_stacks(lines: list[str]) -> list[str]:
    kept: list[str] = []
    in_stack = False
    for line in lines:
        if _STACK_BEGINS.match(line):
            in_stack = True
        elif in_stack and _FRAME.match(line):
            continue
        else:
            # The first line that is no frame is the error.
            in_stack = False
            kept.append(line)
    return kept
