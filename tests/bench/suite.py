"""How long `make check` and each tier of `make test` take.

python -m tests.bench.suite          (runs both: half an hour; the machine must be idle)
python -m tests.bench.suite --last   (records the last run of `make test`)
"""

import json
import subprocess
import sys
import time
from typing import Any

from tests.bench.figures import Figure, parser, record
from tools.tiers.run import ROOT, SUMMARY

CHECK_GOAL, TEST_GOAL = "< 120 s", "< 2400 s"


def figures(written: dict[str, Any], check_seconds: float | None) -> list[Figure]:
    """The figures of a whole run of `make test`. ValueError if it did not pass, or left a tier out."""
    not_passed = [each["tier"] for each in written["tiers"] if each["outcome"] != "passed"]
    if not_passed:
        raise ValueError(f"not every tier passed: {', '.join(not_passed)}; a time without them says nothing")
    made = [Figure("make check", check_seconds, "s", goal=CHECK_GOAL)] if check_seconds else []
    for each in written["tiers"]:
        tests = f", {each['counts']['passed']} tests" if each["counts"] else ""
        made.append(Figure(f"tier {each['tier']}{tests}", each["seconds"], "s"))
    return [*made, Figure("make test", written["seconds"], "s", goal=TEST_GOAL)]


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--last", action="store_true", help="record the last run of `make test`")
    options = line.parse_args()
    check_seconds = None
    if not options.last:
        began = time.monotonic()
        subprocess.run(["make", "check"], cwd=ROOT, check=True)
        check_seconds = time.monotonic() - began
        subprocess.run(["make", "test"], cwd=ROOT, check=True)
    if not SUMMARY.exists():
        sys.exit(f"no {SUMMARY}: run `make test` first")
    try:
        record("suite", figures(json.loads(SUMMARY.read_text()), check_seconds), options.out)
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
