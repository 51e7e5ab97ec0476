"""What the process that checks a manifest answers, and what its end without an answer means."""

import signal

import pytest

from rljob_api.errors import Problem
from rljob_runtime.cli.verdict import Verdict, broken_by, decode, encode, without_answer
from rljob_runtime.manifest.load import Finding, ManifestError

_PROBLEM = Problem(("spec", "pools", 0, "replicas"), "is 20", "2")


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(12.5),
        Verdict(1.0, errors=(Finding("job.yaml", 7, _PROBLEM), Finding("job.yaml", 1, Problem((), "no")))),
        Verdict(1.0, warnings=("job.yaml:3  größer als nötig.", "zwei\nZeilen")),
        Verdict(1.0, errors=(Finding("no-utf8-\udcff.yaml", 1, _PROBLEM),)),
        Verdict(1.0, warnings=("w",), broken="Traceback …\nKeyError: 'x'", missing="yaml"),
    ],
    ids=["nothing wrong", "errors", "warnings", "a name with other bytes", "broken"],
)
def test_an_answer_comes_out_as_it_went_in(verdict: Verdict) -> None:
    assert decode(encode(verdict)) == verdict


def test_errors_are_told_as_if_they_had_been_found_here() -> None:
    found = [Finding("job.yaml", 7, _PROBLEM), Finding("job.yaml", 3, Problem(("kind",), "wrong"))]
    answered = decode(encode(Verdict(1.0, tuple(found))))
    assert str(ManifestError(answered.errors)) == str(ManifestError(found))


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b'{"errors": []}', b'{"over": "x"}'])
def test_what_is_no_answer(answer: bytes) -> None:
    with pytest.raises(ValueError):
        decode(answer)


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (RuntimeError("of our own making"), None),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "torch"),
        (ImportError("no name in it", name="torch"), None),
    ],
)
def test_a_check_that_fails_leaves_its_traceback_and_what_it_had_found(
    error: Exception, missing: str | None
) -> None:
    try:
        raise error
    except type(error) as raised:
        verdict = broken_by(raised, ["look here"], 3.0)
    assert verdict.broken is not None
    assert verdict.broken.startswith("Traceback (most recent call last):\n")
    assert "raise error" in verdict.broken and verdict.broken.endswith(f"{type(error).__name__}: {error}")
    assert (verdict.missing, verdict.warnings, verdict.errors, verdict.over) == (
        missing,
        ("look here",),
        (),
        3.0,
    )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            -signal.SIGKILL,
            "was killed, as the kernel does where memory runs out: make room, and run it again",
        ),
        (-signal.SIGSEGV, "was ended by SIGSEGV before it had an answer"),
        (-60, "was ended by signal 60 before it had an answer"),
        (3, "ended with exit code 3 before it had an answer"),
        (0, "ended with exit code 0 before it had an answer"),
    ],
)
def test_an_end_without_an_answer(code: int, words: str) -> None:
    assert without_answer(code) == f"the process that checks the manifest {words}"
