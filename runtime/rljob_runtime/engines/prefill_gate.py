"""When prompts that wait for a place in an engine begin: several in one step, so that most only decode.

A step that computes a prompt beside hundreds of running requests costs more than one that only decodes,
however short the prompt is: it has no graph. While a prompt waits its place is empty. Which of the two costs
more is not known beforehand, as nobody knows what arrives next. So prompts wait until the empty places have
cost as much as such a step does (rent or buy): little more than twice what one who knew would pay.

Guarantees:
- what costs are not known of, or cost nothing, begins as without a gate, but for a few steps now and then in
  which prompts wait so that the others are seen;
- nothing waits where nothing else generates, where requests were pre-empted, where there is no memory for it,
  and where prompts are computed in any case;
- a place that there is no memory for costs nothing;
- nothing waits for more than `MOST_STEPS` steps, or in a step that begins `MOST_SECONDS` after the first one
  that it waited in;
- what may begin and finds no memory is not held back again before something has begun.

Pure: time is passed in.
"""

import statistics
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_STEPS = 64
MOST_SECONDS = 2.0
LOOK_EVERY, LOOK_STEPS = 64, 4
"""Where too few steps that only decode were seen, prompts wait in so many of so many steps."""
_RECENT_STEPS = 512
"""Older ones tell nothing: requests have grown since, or there are others."""
_FEWEST, _MOST = 4, 32
"""Steps of a kind from which its costs are known, and those that are looked at, the latest."""


@dataclass(frozen=True)
class Costs:
    """What steps cost, in seconds."""

    pure: float
    """One that only decodes."""
    extra: float
    """What it costs beyond that to compute any prompt at all; what each of its tokens costs comes on top, and
    is the same whenever it is computed."""


@dataclass(frozen=True)
class Waited:
    """What waiting has cost since something began last."""

    lost: int = 0
    """Empty places that something waited for, summed up over steps."""
    steps: int = 0
    since: float = 0.0
    """When the first of these steps began; of no meaning where there was none."""

    def one_more(self, kept_out: int, now: float) -> "Waited":
        """After a step in which so many have waited that could have begun."""
        return Waited(self.lost + kept_out, self.steps + 1, self.since if self.steps else now)


@dataclass(frozen=True)
class Queue:
    """What a step that is about to begin finds."""

    running: int
    """Requests that generate in it."""
    admissible: int
    """Of those that wait, as many as there are places for."""
    at_once: bool = False
    """Whether prompts are computed in it in any case, or those that wait must not."""
    room: int | None = None
    """How many of them there is memory for, roughly; None where that is not known."""

    @property
    def kept_out(self) -> int:
        """How many begin later if none begins in it."""
        return self.admissible if self.room is None else min(self.admissible, self.room)


def admits(queue: Queue, waited: Waited, costs: Costs | None, looking: bool, now: float) -> bool:
    """Whether those that wait begin in this step. `costs`: None where they are not known; `looking`: whether
    prompts are to wait then."""
    if queue.at_once or queue.running == 0 or queue.kept_out == 0 or waited.steps >= MOST_STEPS:
        return True
    if waited.steps and now - waited.since >= MOST_SECONDS:
        return True
    if costs is None:
        return not looking
    return waited.lost * costs.pure >= costs.extra * queue.running


class StepTimes:
    """How long an engine's latest steps took."""

    def __init__(self) -> None:
        self._steps = 0
        self._pure: deque[tuple[int, float]] = deque(maxlen=_MOST)
        """By the number of the step: seconds."""
        self._mixed: deque[tuple[int, int, float]] = deque(maxlen=_MOST)
        """The same with tokens of prompts before the seconds."""
        self._at_none: float | None = None
        """`_at_none` of the latter; None where it is to be found anew. Costs are asked for in each step in
        which prompts wait, which may be all that the accelerator waits for."""

    def add(self, prompt_tokens: int, seconds: float) -> None:
        """A step took so long, beginning with the end of the one before."""
        self._steps += 1
        if prompt_tokens:
            self._mixed.append((self._steps, prompt_tokens, seconds))
            self._at_none = None
        else:
            self._pure.append((self._steps, seconds))
        oldest = self._steps - _RECENT_STEPS
        while self._pure and self._pure[0][0] <= oldest:
            self._pure.popleft()
        while self._mixed and self._mixed[0][0] <= oldest:
            self._mixed.popleft()
            self._at_none = None

    def costs(self) -> Costs | None:
        """None where too few steps of either kind were seen lately."""
        if min(len(self._pure), len(self._mixed)) < _FEWEST:
            return None
        pure = statistics.median(seconds for _, seconds in self._pure)
        if self._at_none is None:
            _, tokens, seconds = np.array(self._mixed).T
            self._at_none = _at_none(tokens, seconds)
        return Costs(pure, max(0.0, self._at_none - pure))

    @property
    def looking(self) -> bool:
        """Whether prompts are to wait so that steps without any are seen."""
        few = len(self._pure) < _FEWEST <= len(self._mixed)
        return few and self._steps % LOOK_EVERY < LOOK_STEPS


def _at_none(tokens: NDArray[np.float64], seconds: NDArray[np.float64]) -> float:
    """What a step takes for prompts of no token: by a line that does not fall with the tokens, Theil's and
    Sen's, which no step turns that something else held up."""
    first, second = np.triu_indices(len(tokens), 1)
    between = tokens[second] - tokens[first]
    differ = between != 0
    slope = 0.0
    if differ.any():
        slope = max(0.0, float(np.median((seconds[second] - seconds[first])[differ] / between[differ])))
    return float(np.median(seconds - slope * tokens))


class PrefillGate:
    """The state of an engine's gate."""

    def __init__(self) -> None:
        self._times = StepTimes()
        self._waited = Waited()

    def admits(self, queue: Queue, now: float) -> bool:
        """To be asked once for each step, before it. Where it says no, nothing begins in it."""
        if queue.admissible == 0:
            self._waited = Waited()
            return True
        costs = self._times.costs()
        if admits(queue, self._waited, costs, self._times.looking, now):
            return True
        self._waited = self._waited.one_more(queue.kept_out, now)
        return False

    def began(self) -> None:
        """Something has begun."""
        self._waited = Waited()

    def ended(self, prompt_tokens: int, seconds: float) -> None:
        """A step has; see `StepTimes.add`."""
        self._times.add(prompt_tokens, seconds)
