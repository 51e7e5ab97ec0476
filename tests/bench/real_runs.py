"""`rljob run` for benchmarks: a job from a few changes to the copy example, run to its end."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from rljob_runtime.trace.record.metrics_log import read_metrics

EXAMPLE = Path(__file__).parents[2] / "examples" / "copy.yaml"


def run_example(folder: Path, training: dict[str, Any], seconds: float = 1500) -> list[dict[str, Any]]:
    """Run the copy example with `training` merged over its own; the metrics of its steps."""
    folder.mkdir(parents=True)
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["training"].update(training)
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "rljob_runtime.cli", "run", str(file), "--output", str(folder / "run")]
    subprocess.run(command, check=True, timeout=seconds)
    return read_metrics(folder / "run" / "metrics.jsonl").rows
