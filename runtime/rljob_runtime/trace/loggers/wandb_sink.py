"""Metrics for Weights & Biases, by its own library, which sends in the background and writes to the run's
folder what it cannot send."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rljob_api.loggers import WandbLogger
from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.loggers.forwarder import LoggerDenied, PointsRefused, in_words
from rljob_runtime.trace.loggers.wandb_answers import about_the_answer, about_the_key, about_the_names


class WandbSink:
    """Implements `Sink`."""

    def __init__(self, config: WandbLogger, name: str, run_id: str, folder: Path) -> None:
        """Begins the run `run_id`, or goes on with it; `folder`: of the job's run. Raises `LoggerDenied`, and
        what else wandb raises."""
        from wandb.errors import AuthenticationError, CommError, UsageError

        try:
            self._run = _begun(config, name, run_id, folder)
        except AuthenticationError as error:
            raise LoggerDenied(f"{in_words(error)}: {about_the_key()}") from error
        except CommError as error:
            if (to_do := about_the_answer(str(error))) is None:
                raise
            raise LoggerDenied(f"{in_words(error)}: {to_do}") from error
        except UsageError as error:
            raise LoggerDenied(f"{in_words(error)}: {about_the_names()}") from error
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


def _begun(config: WandbLogger, name: str, run_id: str, folder: Path) -> Any:
    """The run at wandb. Raises as `WandbSink`."""
    import wandb

    # It would ask for one at a terminal, and call a server that does not answer a wrong key.
    if config.mode == "online" and not wandb.login(prompt=False, verify=False):
        raise LoggerDenied("there is no key: set WANDB_API_KEY in the driver's environment")
    try:
        return _run(config, name, run_id, folder)
    except Exception:
        # To the process that it sends from, the run is in use: no later attempt would begin it there.
        wandb.teardown()
        raise


def _run(config: WandbLogger, name: str, run_id: str, folder: Path) -> Any:
    import wandb

    return wandb.init(
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
