"""What a tier's tests gave: read from its JUnit file, judged, and told."""

import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Counts:
    """Tests of a tier by their result; a test with an error in its fixtures failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why tests were skipped, and how many for this reason."""


@dataclass(frozen=True)
class Result:
    """What one tier gave. A tier is skipped if none of its tests ran."""

    tier: str
    outcome: Outcome
    seconds: float
    counts: Counts | None = None
    """None for a tier that has no tests (lint), and for one that ended before it could tell."""
    why: str = ""
    """Why a tier failed although no test did; empty otherwise."""


def counts_of(junit: str) -> Counts:
    """The counts in a JUnit file of pytest. xml.ParseError."""
    passed = failed = 0
    reasons: Counter[str] = Counter()
    for case in xml.fromstring(junit).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif (skipped := case.find("skipped")) is not None and skipped.get("type") != "pytest.xfail":
            reasons[skipped.get("message", "")] += 1
        else:
            passed += 1
    return Counts(passed, failed, sum(reasons.values()), dict(reasons.most_common()))


def judge(tier: str, code: int, seconds: float, counts: Counts | None, *, may_skip: bool) -> Result:
    """The result of a tier whose command ended with `code`. `may_skip`: a tier none of whose tests can run
    on this machine is no failure."""
    ran_none = counts is not None and counts.skipped > 0 and counts.passed + counts.failed == 0
    if code != 0:
        why = "" if counts and counts.failed else f"exit code {code}"
        return Result(tier, "failed", seconds, counts, why)
    # pytest ends with 0 where all tests were skipped: such a tier has not passed.
    if ran_none:
        why = "" if may_skip else "CI is set: no tier may be skipped"
        return Result(tier, "skipped" if may_skip else "failed", seconds, counts, why)
    return Result(tier, "passed", seconds, counts)


def summary(results: Sequence[Result], seconds: float) -> str:
    """A table of all tiers, and why tests were skipped; `seconds`: of the whole run."""
    lines = [f"{'tier':<14}{'result':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    for each in results:
        counts = (
            [each.counts.passed, each.counts.failed, each.counts.skipped] if each.counts else ["", "", ""]
        )
        shown = "{:>8}{:>8}{:>9}".format(*counts)
        lines.append(f"{each.tier:<14}{each.outcome:<10}{shown}{each.seconds:>9.0f}  {each.why}".rstrip())
    lines.append(f"{'all':<14}{overall(results):<10}{'':>25}{seconds:>9.0f}")
    for each in results:
        reasons = each.counts.reasons if each.counts else {}
        for reason, count in reasons.items():
            whole = "all" if each.outcome == "skipped" and len(reasons) == 1 else str(count)
            lines.append(f"skipped in {each.tier}: {whole} tests: {reason}")
    return "\n".join(lines)


def overall(results: Sequence[Result]) -> Outcome:
    """The outcome of all tiers together: failed if one failed."""
    return "failed" if any(each.outcome == "failed" for each in results) else "passed"


def document(results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "outcome": overall(results),
        "seconds": round(seconds, 1),
        "tiers": [{**asdict(each), "seconds": round(each.seconds, 1)} for each in results],
    }
