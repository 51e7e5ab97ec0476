"""What a tier gave is judged and told right."""

import pytest

from tools.tiers.results import Counts, Result, counts_of, document, judge, overall, summary

JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest">
<testcase name="passes" />
<testcase name="fails"><failure message="assert False">...</failure></testcase>
<testcase name="fails when it is taken down"><error message="failed on teardown">...</error></testcase>
<testcase name="needs"><skipped type="pytest.skip" message="needs 2 GPUs">...</skipped></testcase>
<testcase name="needs too"><skipped type="pytest.skip" message="needs 2 GPUs">...</skipped></testcase>
<testcase name="needs root"><skipped type="pytest.skip" message="needs root">...</skipped></testcase>
<testcase name="fails as expected"><skipped type="pytest.xfail" message="why">...</skipped></testcase>
</testsuite></testsuites>"""


def test_counts_of_a_junit_file():
    assert counts_of(JUNIT) == Counts(2, 2, 3, {"needs 2 GPUs": 2, "needs root": 1})


NONE_RAN = Counts(0, 0, 4, {"a node needs root": 4})


@pytest.mark.parametrize(
    ("code", "counts", "may_skip", "outcome", "why"),
    [
        pytest.param(0, None, True, "passed", "", id="no tests, as lint"),
        pytest.param(2, None, True, "failed", "exit code 2", id="lint finds something"),
        pytest.param(0, Counts(3, 0, 1, {"x": 1}), False, "passed", "", id="some tests skipped, also in CI"),
        pytest.param(2, Counts(3, 1, 0), True, "failed", "", id="a test failed"),
        pytest.param(2, Counts(3, 0, 0), True, "failed", "exit code 2", id="no test failed, the run did"),
        pytest.param(0, NONE_RAN, True, "skipped", "", id="none ran"),
        pytest.param(0, NONE_RAN, False, "failed", "CI is set: no tier may be skipped", id="none ran in CI"),
        pytest.param(0, Counts(), False, "passed", "", id="an empty tier"),
    ],
)
def test_a_tier_is_judged(code, counts, may_skip, outcome, why):
    result = judge("unit", code, 1.5, counts, may_skip=may_skip)
    assert (result.outcome, result.why, result.seconds, result.counts) == (outcome, why, 1.5, counts)


RESULTS = [
    Result("lint", "passed", 15.2),
    Result("runtime", "passed", 612.0, Counts(210, 0, 9, {"needs 2 GPUs": 6, "needs a GPU": 3})),
    Result("node", "skipped", 3.1, NONE_RAN),
    Result("chart", "failed", 9.9, None, "exit code 2"),
]


def test_the_summary_names_every_tier_and_every_reason():
    assert summary(RESULTS, 640.4).splitlines() == [
        "tier          result      passed  failed  skipped  seconds",
        "lint          passed                                    15",
        "runtime       passed         210       0        9      612",
        "node          skipped          0       0        4        3",
        "chart         failed                                    10  exit code 2",
        "all           failed                                   640",
        "skipped in runtime: 6 tests: needs 2 GPUs",
        "skipped in runtime: 3 tests: needs a GPU",
        "skipped in node: all tests: a node needs root",
    ]


def test_one_tier_that_failed_fails_all():
    assert overall(RESULTS) == "failed"
    assert overall(RESULTS[:3]) == "passed"
    written = document(RESULTS, 640.44)
    assert (written["outcome"], written["seconds"]) == ("failed", 640.4)
    assert [each["tier"] for each in written["tiers"]] == ["lint", "runtime", "node", "chart"]
    assert written["tiers"][2]["counts"]["reasons"] == {"a node needs root": 4}
