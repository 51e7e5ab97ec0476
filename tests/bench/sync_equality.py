"""Bound 0 through the whole runtime against a straight synchronous loop: losses that differ, over 20 steps.

python -m tests.bench.sync_equality
"""

import tempfile
from pathlib import Path
from typing import Any

from rljob_api import RLJob
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import Figure, parser, record
from tests.support.runtime.reference_sync import synchronous_losses
from tests.support.runtime.runs import manifest, running

STEPS = 20


def main() -> None:
    out = parser(__doc__).parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        training: dict[str, Any] = {"async": {"maxStaleness": 0}, "optimizer": {"learningRate": 0.001}}
        file, document = manifest(folder, STEPS, **training)
        with running(file) as run:
            if run.end(600) != 0:
                raise SystemExit(run.log.read_text())
        losses = [row["loss"] for row in read_metrics(run.folder / "metrics.jsonl").rows]
        straight = synchronous_losses(
            RLJob.model_validate(document), run.folder / "initial_model", folder, STEPS
        )
    different = sum(ours != theirs for ours, theirs in zip(losses, straight, strict=True))
    record(
        "sync_equality",
        [Figure(f"steps of {STEPS} whose loss differs in any bit", different, "steps", goal="0")],
        out,
    )


if __name__ == "__main__":
    main()
