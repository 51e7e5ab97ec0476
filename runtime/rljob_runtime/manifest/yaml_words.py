"""What is wrong with a text that is no YAML, in words for the person who wrote it. Pure."""

import re

import yaml

_ODD_SPACE = re.compile("[\u00a0\u2000-\u200b\u202f\u3000]")
"""Spaces that are none to YAML: text that is copied from a web page or a chat has them."""


def what(error: yaml.MarkedYAMLError, text: str) -> str:
    """The parser's error about `text`."""
    problem, context = error.problem or error.context or "it cannot be parsed", error.context or ""
    if "'\\t'" in problem:
        return "there is a tab: indent with spaces"
    if (odd := _odd_space(error, text)) is not None:
        return odd
    advice = _advice(problem)
    if error.context_mark is None:
        return f"{problem}{advice}"
    begin = error.context_mark.line + 1
    if problem.startswith("expected <block end>"):
        return (
            f"this is indented otherwise than the block that begins in line {begin}, all of whose fields "
            "begin in one column"
        )
    if "flow" in context:
        return f"{problem} (the [ or {{ of line {begin} is open)"
    if "quoted scalar" in context and "end of stream" in problem:
        return f"a text in quotes begins in line {begin} and has no end: close its quotes"
    return f"{problem}{advice}"


def _odd_space(error: yaml.MarkedYAMLError, text: str) -> str | None:
    """Where a space that is none stands in the line of the error, or in the one before: the parser takes it
    for a letter, and stumbles over what follows."""
    mark = error.problem_mark or error.context_mark
    # As the parser counts lines.
    lines = re.split("\r\n|[\r\n\x85\u2028\u2029]", text)
    for number in range(max(0, mark.line - 1), mark.line + 1) if mark is not None else ():
        if number < len(lines) and (found := _ODD_SPACE.search(lines[number])) is not None:
            return (
                f"line {number + 1} has a character that looks like a space and is none "
                f"(U+{ord(found[0]):04X}): type a space in its place"
            )
    return None


def _advice(problem: str) -> str:
    """What to do, by the parser's own words."""
    if problem == "mapping values are not allowed here":
        return (
            ': either a value has ": " in it and needs quotes, or this line is indented too far, or the one '
            "above it has no colon with a space behind"
        )
    if "cannot start any token" in problem:
        return ": put the value in quotes"
    if "escape" in problem:
        return ": in double quotes a \\ has a meaning of its own; use single quotes"
    return ""
