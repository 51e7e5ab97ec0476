"""Random schedules of faults and migrations, through the real rollouter, pool, router and weight sync in
virtual time: engines die, leave, pause, get new weights, requests move with their tokens or begin anew. How
many samples were lost, doubled or altered.

python -m tests.bench.migration_schedules [SCHEDULES]     (10,000: about ten minutes on two cores)
"""

import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.bench.figures import Figure, parser, record
from tests.support.simulated.migrating_job import MigratingJob, schedule

SCHEDULES = 10_000


def run(seed: int) -> tuple[int, list[str], Counter[str]]:
    """What went wrong in a schedule, and how often each thing happened."""
    job = MigratingJob(schedule(seed)).run()
    return seed, job.wrong, job.seen


def main() -> None:
    line = parser(__doc__)
    line.add_argument("schedules", type=int, nargs="?", default=SCHEDULES)
    options = line.parse_args()
    count = options.schedules
    seen: Counter[str] = Counter()
    wrong = 0
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for seed, faults, happened in pool.map(run, range(count), chunksize=20):
            seen += happened
            wrong += len(faults)
            if faults:
                print(f"schedule {seed}: {'; '.join(faults[:3])}", flush=True)
    figures = [
        Figure("samples lost, doubled or altered", wrong, "", goal="0"),
        Figure("schedules", count, "", goal="10,000"),
        *(Figure(what, number, "") for what, number in sorted(seen.items())),
    ]
    record("migration_schedules", figures, options.out)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
