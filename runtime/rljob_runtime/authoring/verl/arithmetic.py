"""Integer arithmetic of a shell: `$(( ... ))`.

Guarantees: terminates, and never computes with numbers beyond 64 bits; division is truncated towards 0, as in
bash.
"""

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(\*\*|[-+*/%()]|0[xX][0-9a-fA-F]+|[0-9]+|[A-Za-z_]\w*)")
_LIMIT = 2**63
_DEPTH = 20
"""Of parentheses, and of variables that stand for expressions."""
_WORDS = 200
"""Numbers, names and signs of one expression."""


class ArithmeticFault(ValueError):
    """The expression cannot be computed here; the message says why, as a clause."""


def evaluate(expression: str, variable: Callable[[str], str], depth: int = 0) -> int:
    """The value of an expression. `variable` gives the text of a variable, itself an expression, and may
    raise `ArithmeticFault`, as this does."""
    if depth > _DEPTH:
        raise ArithmeticFault("it refers to itself, or is nested too deeply")
    words: list[str] = []
    at = 0
    while expression[at:].strip():
        match = _TOKEN.match(expression, at)
        if match is None:
            raise ArithmeticFault(f"{expression[at:].strip()[:20]} is not understood in arithmetic")
        words.append(match[1])
        at = match.end()
    if not words:
        return 0
    if len(words) > _WORDS:
        raise ArithmeticFault("it is too long")
    parser = _Parser(words, lambda name: evaluate(variable(name), variable, depth + 1), depth)
    return parser.whole()


class _Parser:
    def __init__(self, words: list[str], variable: Callable[[str], int], depth: int) -> None:
        self._words = words
        self._variable = variable
        self._depth = depth

    def whole(self) -> int:
        value = self._sum()
        if self._words:
            raise ArithmeticFault(f"{self._words[0]} is not expected there")
        return value

    def _next(self, *wanted: str) -> str | None:
        return self._words.pop(0) if self._words and self._words[0] in wanted else None

    def _sum(self) -> int:
        value = self._product()
        while sign := self._next("+", "-"):
            other = self._product()
            value = _bounded(value + other if sign == "+" else value - other)
        return value

    def _product(self) -> int:
        value = self._power()
        while sign := self._next("*", "/", "%"):
            other = self._power()
            if sign == "*":
                value = _bounded(value * other)
                continue
            if other == 0:
                raise ArithmeticFault("it divides by 0")
            quotient = abs(value) // abs(other) * (1 if (value < 0) == (other < 0) else -1)
            value = quotient if sign == "/" else value - quotient * other
        return value

    def _power(self) -> int:
        value = self._signed()
        if self._next("**"):
            exponent = self._power()
            if not 0 <= exponent < 64:
                raise ArithmeticFault("an exponent must be from 0 to 63")
            value = _bounded(value**exponent)
        return value

    def _signed(self) -> int:
        sign = 1
        while word := self._next("+", "-"):
            sign = -sign if word == "-" else sign
        return sign * self._atom()

    def _atom(self) -> int:
        if self._next("("):
            self._depth += 1
            if self._depth > _DEPTH:
                raise ArithmeticFault("it is nested too deeply")
            value = self._sum()
            if self._next(")") is None:
                raise ArithmeticFault("a ( is not closed")
            self._depth -= 1
            return value
        if not self._words:
            raise ArithmeticFault("it ends too early")
        word = self._words.pop(0)
        if word[0].isdigit():
            try:
                # A leading 0 makes an octal number.
                octal = len(word) > 1 and word.isdigit() and word[0] == "0"
                return _bounded(int(word, 8 if octal else 0))
            except ValueError:
                raise ArithmeticFault(f"{word} is no number") from None
        if not (word[0].isalpha() or word[0] == "_"):
            raise ArithmeticFault(f"{word} is not expected there")
        return self._variable(word)


def _bounded(value: int) -> int:
    if not -_LIMIT <= value < _LIMIT:
        raise ArithmeticFault("it leaves 64 bits")
    return value
