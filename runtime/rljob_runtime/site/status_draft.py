"""What the driver has to say in `status.training`: the newest state of each field.

Guarantees: setting a field to what it is changes nothing; whoever writes the status learns whether what has
changed is an answer that somebody waits for, or progress that may wait; a pod whose release was ever on its
way to the operator counts as `offered` until it is certain that the operator can no longer act on that.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

from rljob_api.status import CheckpointStatus, EvaluationStatus, StalenessStatus, TrainingStatus
from rljob_runtime.site.load import load_of, worth_telling
from rljob_runtime.view.progress import Progress

REPORT_SECONDS = 30
"""The status is written at least so often: whoever reads it sees that the driver is alive."""


class StatusDraft:
    """See the module's guarantees."""

    def __init__(self, attempt: int, step: int = 0, total_steps: int = 0) -> None:
        self._training = TrainingStatus(
            attempt=attempt,
            step=step,
            total_steps=total_steps,
            weight_version=0,
            report_seconds=REPORT_SECONDS,
        )
        self.changed = asyncio.Event()
        """Set while something has changed since the last `take`."""
        self.urgent = asyncio.Event()
        """Set while an answer, which the operator waits for, is among what has changed."""
        self.offered: frozenset[str] = frozenset()
        """Pods that the operator may take for released."""
        # The first state is to be written too.
        self.changed.set()

    @property
    def training(self) -> dict[str, Any]:
        """`status.training` in YAML's names, without `time`."""
        return self._training.model_dump(mode="json", by_alias=True, exclude_none=True)

    def take(self) -> dict[str, Any]:
        """The value of `training` for a write that begins now; nothing counts as changed afterwards."""
        self.changed.clear()
        self.urgent.clear()
        # Even a write that seems to fail may have reached the server.
        self.offered |= set(self._training.released)
        return self.training

    def not_written(self, offered: Collection[str]) -> None:
        """What was taken last has certainly not reached the server: the pods that are offered are those that
        were before, `offered`."""
        self.offered = frozenset(offered)

    def written(self, released: Collection[str], doomed: Collection[str]) -> None:
        """A status with the pods `released` was written. The write demanded the version of the RLJob in which
        the operator had begun to remove the pods `doomed`: no other was being removed at that moment."""
        # Pods that the operator has begun to remove stay offered, so that no worker is started on them.
        self.offered = frozenset(released) | (self.offered & set(doomed))

    def stands_at(self, step: int, total_steps: int) -> None:
        """The job has trained `step` of `total_steps` steps, and begins or goes on from there."""
        self._set(step=step, total_steps=total_steps, progress=_words(step, total_steps))

    def progress(self, progress: Progress) -> None:
        """Report where the training stands."""
        staleness = None
        if progress.staleness_mean is not None:
            staleness = StalenessStatus(
                mean=round(progress.staleness_mean, 3),
                max=progress.staleness_max or 0,
                masked=None if progress.masked_share is None else round(progress.masked_share, 3),
            )
        total = progress.total_steps or 0
        self._set(
            step=progress.step,
            total_steps=total,
            progress=_words(progress.step, total),
            weight_version=progress.version,
            reward=None if progress.reward is None else round(progress.reward, 6),
            staleness=staleness,
            tokens_per_second=round(progress.tokens_per_second, 1),
            queue_depth=progress.queue_depth,
            load=load_of(progress),
        )

    def load(self, progress: Progress) -> bool:
        """Report how busy the pools are, where nothing else is new: as far as it is worth a write. Returns
        whether it is."""
        found = load_of(progress)
        return worth_telling(self._training.load, found) and self._set(load=found)

    def trains_no_more(self) -> None:
        """Nothing is trained any more, or for now: how busy pools are means nothing."""
        self._set(load=None)

    def checkpoint(self, step: int, path: str) -> None:
        """The checkpoint of `step` steps is whole."""
        self._set(checkpoint=CheckpointStatus(step=step, path=path))

    def evaluated(self, evaluation: EvaluationStatus) -> None:
        """An evaluation is over."""
        self._set(evaluation=evaluation)

    def acted_on(self, generation: int) -> None:
        """The driver does what this generation of the spec asks for, or has begun to."""
        self._answer(observed_generation=generation)

    def released(self, pods: Iterable[str]) -> None:
        """These rollout pods, and no others, may be removed."""
        self._answer(released=sorted(pods))

    def trainer_stopped_for(self, workers: int | None) -> None:
        """The trainer is stopped until its pool has so many workers; None once it runs again."""
        self._answer(trainer_stopped_for=workers)

    def suspended_at(self, step: int) -> None:
        """The job is stopped with the checkpoint of this step."""
        self._answer(suspended_at_step=step)

    def _answer(self, **fields: Any) -> None:
        if self._set(**fields):
            self.urgent.set()

    def _set(self, **fields: Any) -> bool:
        """Set fields of the status; returns whether any of them is new."""
        changed = self._training.model_copy(update=fields)
        if changed == self._training:
            return False
        self._training = changed
        self.changed.set()
        return True


def _words(step: int, total_steps: int) -> str:
    return f"{step}/{total_steps}"
