"""Metrics for Weights & Biases, by its own library, which sends in the background and writes to the run's
folder what it cannot send."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rljob_api.loggers import WandbLogger
from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.loggers.forwarder import LoggerAway, PointsRefused, in_words


class WandbSink:
    """Implements `Sink`."""

    def __init__(self, config: WandbLogger, name: str, run_id: str, folder: Path) -> None:
        """Begins the run `run_id`, or goes on with it; `folder`: of the job's run. Raises what wandb does."""
        import wandb

        # It would ask for one at a terminal.
        if config.mode == "online" and not wandb.login(prompt=False):
            raise LoggerAway("there is no key: set WANDB_API_KEY in the driver's environment")
        self._run: Any = wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.run_name or name,
            id=run_id,
            resume="allow" if config.mode == "online" else None,
            mode=config.mode,
            dir=str(folder),
            # It takes no output of the driver's, prints nothing, and stays out of its signals.
            settings=wandb.Settings(
                console="off", silent=True, x_disable_stats=True, disable_git=True, disable_code=True
            ),
        )
        # A step that is trained again after a restart has a point again: wandb's own counter only goes up.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            try:
                self._run.log({**point.values, "step": point.step})
            # Its own checks of what it is given.
            except (TypeError, ValueError) as error:
                raise PointsRefused(in_words(error)) from error

    def close(self) -> None:
        self._run.finish()
