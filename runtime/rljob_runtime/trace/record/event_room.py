"""Keeps the events of a run within the room that the job gives them.

Guarantees: after each look the event files of the run together take no more than that, or only those of the
newest steps are left; what is removed are whole steps, the oldest first. Where files cannot be removed this
ends with one warning, and never the work that is recorded.
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

_KEPT = 3
"""Newest steps that stay, however large they are: workers write them still."""
_STEP = "step_"

_log = logging.getLogger(__name__)


def steps_to_remove(sizes: Mapping[int, int], most: int, newest: int) -> list[int]:
    """Pure. `sizes`: bytes of each step's events; `most`: bytes that they may take together; `newest`: the
    step that was trained last."""
    excess, found = sum(sizes.values()) - most, []
    for step in sorted(sizes):
        if excess <= 0 or step > newest - _KEPT:
            break
        found.append(step)
        excess -= sizes[step]
    return found


class EventRoom:
    """See the module's guarantees."""

    def __init__(self, events: Path, most: int) -> None:
        """`most`: bytes."""
        self._events = events
        self._most = most
        self._sizes: dict[int, int] = {}
        self._warned = False

    def look(self, newest: int) -> None:
        """Measure what has been written since the last look, and remove what is too much. Blocking; `newest`:
        the step that was trained last."""
        try:
            there = {
                int(folder.name.removeprefix(_STEP)): folder
                for folder in self._events.glob(f"{_STEP}*")
                if folder.name.removeprefix(_STEP).isdigit()
            }
            for step, folder in there.items():
                # Steps before that are written no more, but for stragglers, which are small.
                if step not in self._sizes or step > newest - _KEPT:
                    self._sizes[step] = sum(file.stat().st_size for file in folder.iterdir())
            for step in steps_to_remove(self._sizes, self._most, newest):
                self._remove(there.get(step))
                del self._sizes[step]
        except OSError as error:
            if not self._warned:
                _log.warning(
                    "events of old steps are not removed (training.profiling.maxEventsMiB): %s: %s",
                    error.filename, error.strerror,
                )  # fmt: skip
                self._warned = True

    def _remove(self, folder: Path | None) -> None:
        if folder is not None:
            # Under another name first: a straggler finds its folder, or none, and makes it anew.
            gone = folder.rename(folder.with_name(f".{folder.name}"))
            shutil.rmtree(gone)
