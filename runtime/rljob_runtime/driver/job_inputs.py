"""What the parts of a job are made from, and what those that make them work with."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api import RLJob
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.driver.job_settings import JobSettings
from rljob_runtime.driver.model_folder import checkpoint_root
from rljob_runtime.driver.parts import Spawn
from rljob_runtime.driver.stop import StopRequest
from rljob_runtime.rollout.evaluator import HeldOutSet
from rljob_runtime.rollout.served_teacher import ServedTeacher
from rljob_runtime.run_folder import RunOptions
from rljob_runtime.site.own_start import OwnStart
from rljob_runtime.site.site import Site
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, EventLog


@dataclass(frozen=True)
class JobInputs:
    """What a job's parts are made from."""

    job: RLJob
    options: RunOptions
    settings: JobSettings
    tokenizer: TextTokenizer
    prompts: PromptSource
    held_out: tuple[HeldOutSet, ...] = ()
    """What is evaluated."""
    teacher: ServedTeacher | None = None
    """The teacher that a server has, opened; None without one."""
    start: OwnStart = field(default_factory=OwnStart)
    """The driver's own start."""

    @property
    def checkpoints(self) -> Path:
        """The folder that checkpoints go to."""
        return checkpoint_root(self.job, self.options.folder, self.options.manifest_folder)

    @property
    def rewards_log(self) -> Path:
        """What the reward function prints, and its tracebacks."""
        return self.options.folder / "rewards.log"

    @property
    def events_folder(self) -> Path | None:
        """Where events are written; None where the job records none."""
        return self.options.folder / EVENTS_FOLDER if self.job.spec.training.profiling.events else None


@dataclass(frozen=True)
class Assembly:
    """A job's parts while they are being made."""

    inputs: JobInputs
    site: Site
    stop: StopRequest
    events: EventLog
    """Records the driver's own events."""
    stack: AsyncExitStack
    """Ends what was made, in the reverse order."""
    spawn: Spawn
    say: Callable[[str], None]
    """Tells a person, in one line."""
