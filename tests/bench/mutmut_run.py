"""Runs mutmut in the current folder, which tests/bench/mutants.py has laid out, and writes verdicts.json
there: for each mutant its name, file, verdict, and changed lines.

Started as a script by its path: imported as `tests.bench`, it would bring the repository's `tests` in place
of the folder's. Words that the code compares or writes (`"BackOff"`, a key of a dictionary) are changed in
one way in place of the library's three, and sentences for people not at all: a test of every word would only
say it twice.

    python -P tests/bench/mutmut_run.py [--sample N] [--seed N] [NAME OF A MUTANT ...]
"""

import argparse
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libcst
from mutmut import __main__ as mutmut
from mutmut.mutation import mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

CHILDREN = len(os.sched_getaffinity(0))
VERDICTS = Path("verdicts.json")


def changed_words(node: libcst.BaseString) -> Iterator[libcst.BaseString]:
    """The first of the library's changes of a word; none of a text with blanks."""
    first = next(iter(mutators.operator_string(node)), None)
    if isinstance(first, libcst.SimpleString) and " " not in first.value:
        yield first


def lines(diff: str, sign: str) -> str:
    """The lines that a diff takes or gives, without their indentation."""
    found = [line[1:].strip() for line in diff.splitlines()[2:] if line.startswith(sign)]
    return " ".join(found)


def verdicts() -> Iterator[dict[str, str]]:
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        for name, code in data.exit_code_by_key.items():
            diff = get_diff_for_mutant(name, path=path)
            yield {
                "name": name,
                "file": str(path),
                "verdict": status_by_exit_code[code],
                "was": lines(diff, "-"),
                "becomes": lines(diff, "+"),
            }


def drawn(count: int, seed: int) -> None:
    """Has mutmut try so many of the mutants alone, with equal seeds the same ones."""
    every = mutmut.collect_source_file_mutation_data

    def some(*arguments: Any, **options: Any) -> Any:
        mutants, files = every(*arguments, **options)
        mutants.sort(key=lambda mutant: mutant[1])
        random.Random(seed).shuffle(mutants)
        return mutants[:count], files

    mutmut.collect_source_file_mutation_data = some


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.sample is not None:
        drawn(arguments.sample, arguments.seed)
    operators: Any = mutators.mutation_operators
    texts = (libcst.BaseString, mutators.operator_string)
    operators[operators.index(texts)] = (libcst.BaseString, changed_words)
    mutmut._run(tuple(arguments.names), CHILDREN)
    VERDICTS.write_text(json.dumps(list(verdicts()), indent=1))


if __name__ == "__main__":
    main()
