"""`make cluster-run` where programs and images are there already: from no cluster to the example's report.

python -m tests.bench.cluster_run          (as root; ends the cluster of `make cluster-up`)
"""

import statistics
import subprocess
import sys
import time

from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from tests.bench.figures import Figure, parser, record
from tools.cluster.demo import ROOT

_CLUSTER = [sys.executable, "-m", "tools.cluster"]
_NEWEST_STEPS = 10


def main() -> None:
    out = parser(__doc__).parse_args().out
    subprocess.run([*_CLUSTER, "build"], check=True)
    subprocess.run([*_CLUSTER, "down"], check=True)
    began = time.monotonic()
    subprocess.run([*_CLUSTER, "run"], check=True)
    seconds = time.monotonic() - began
    subprocess.run([*_CLUSTER, "down"], check=True)
    rows = read_metrics(ROOT / "runs" / "copy-grpo-cluster" / METRICS_FILE).rows
    reward = statistics.mean(row["reward_mean"] for row in rows[-_NEWEST_STEPS:])
    record(
        "cluster_run",
        [
            Figure("make cluster-run, all built: to the report", seconds, "s", goal="< 300 s"),
            Figure("mean reward of the last 10 steps", reward, "reward", goal="at least 0.9"),
        ],
        out,
    )


if __name__ == "__main__":
    main()
