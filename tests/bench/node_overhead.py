"""Steps per second of the example in real pods, beside `rljob run` on the same machine, in turns.

The cluster's own programs share the machine's cores, so `rljob run` is measured with and without them;
without them before the cluster starts and after it has ended, so that a machine that gets slower or faster
meanwhile shows in the spread. The learning rate is too small to change what the model answers: responses of
a model that learns get longer or shorter, differently in each run, and the steps with them.

    python -m tests.bench.node_overhead [--steps 160]          (as root)
"""

import argparse
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from tests.bench.figures import Figure, record
from tests.bench.real_runs import EXAMPLE, run_example
from tests.support.operator.node_jobs import CLAIM, NodeJob, claim, new_namespace
from tools.cluster import Cluster
from tools.cluster.product import product_cluster

WARM_UP_STEPS = 15
TURNS = 3
LEARNING_RATE = 1e-9
GOAL = "at most 5 % slower in pods"


def steps_per_second(rows: list[dict[str, Any]]) -> float:
    """Over all steps after the first ones, in which engines and caches get warm."""
    times: list[float] = [row["time"] for row in rows[WARM_UP_STEPS:]]
    return (len(times) - 1) / (times[-1] - times[0])


def in_pods(cluster: Cluster, namespace: str, training: dict[str, Any]) -> float:
    """The example in a new namespace of a cluster, with `training` merged over its own."""
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["training"].update(training)
    document["spec"]["storage"] = {"volume": {"persistentVolumeClaim": {"claimName": CLAIM}}}
    new_namespace(cluster, namespace)
    run = NodeJob(cluster, namespace, claim(cluster, namespace), name=document["metadata"]["name"])
    run.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(document))
    run.wait_phase("Complete", 1500)
    return steps_per_second(read_metrics(run.run_folder / METRICS_FILE).rows)


def alone(training: dict[str, Any]) -> float:
    """The same by `rljob run`."""
    with tempfile.TemporaryDirectory() as folder:
        return steps_per_second(run_example(Path(folder) / "alone", training))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=160)
    schedule = yaml.safe_load(EXAMPLE.read_text())["spec"]["training"]["schedule"]
    schedule["totalSteps"] = parser.parse_args().steps
    training = {"schedule": schedule, "optimizer": {"learningRate": LEARNING_RATE}}
    pods, beside, without = [], [], [alone(training), alone(training)]
    with product_cluster() as cluster:
        for turn in range(TURNS):
            pods.append(in_pods(cluster, f"overhead-{turn}", training))
            beside.append(alone(training))
    without += [alone(training), alone(training)]
    record(
        "node_overhead",
        [
            Figure("steps in pods, beside rljob run", mean(pods), "1/s", mean(without), GOAL),
            Figure("rljob run with the idle cluster, beside without", mean(beside), "1/s", mean(without)),
            Figure("steps in pods, beside rljob run with the idle cluster", mean(pods), "1/s", mean(beside)),
            *(
                Figure(f"slowest of {len(rates)}, beside the fastest: {place}", min(rates), "1/s", max(rates))
                for place, rates in {
                    "pods": pods,
                    "rljob run with the idle cluster": beside,
                    "rljob run without": without,
                }.items()
            ),
        ],
    )


if __name__ == "__main__":
    main()
