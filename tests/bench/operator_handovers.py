"""Attempts that a new leader deletes while they run, over random histories with old views of the RLJob.

In each history attempts fail, the job is suspended and resumed, leaders end between any two parts of a plan,
and others begin (see tests/support/operator/handovers.py). The baseline begins with what its watch of RLJobs
has brought, up to 75 s old, and writes no status that is the same; the operator lists the RLJobs first and
writes the status before it takes pods away. Beside them, each of the two alone.

    python -m tests.bench.operator_handovers
"""

from tests.bench.figures import Figure, parser, record
from tests.support.operator.handovers import HISTORIES, Leader, harm


def main() -> None:
    """Measure and record."""
    out = parser(__doc__).parse_args().out
    ours = harm(Leader(lists=True, checks=True))
    neither = harm(Leader(lists=False, checks=False))
    listing = harm(Leader(lists=True, checks=False))
    checking = harm(Leader(lists=False, checks=True))
    zero = "0"
    record(
        "operator_handovers",
        [
            Figure("histories", HISTORIES, "histories"),
            Figure("hand-overs", ours.hand_overs, "hand-overs"),
            Figure("running attempts deleted", ours.deleted, "attempts", neither.deleted, goal=zero),
            Figure("instants with two heads", ours.two_heads, "instants", neither.two_heads, goal=zero),
            Figure("running attempts deleted, only lists RLJobs", listing.deleted, "attempts"),
            Figure("running attempts deleted, only writes first", checking.deleted, "attempts"),
        ],
        out,
    )


if __name__ == "__main__":
    main()
