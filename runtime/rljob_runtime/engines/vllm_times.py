"""Where the time of a vLLM engine's requests goes.

Guarantees: what stood still because of a weight update counts as that, whether it was in a pause or between
two steps; of what is long over nothing is kept.
"""

import time
from collections.abc import Mapping, Sequence

from rljob_runtime.engines.stays import Mark, Pauses, timing_of
from rljob_runtime.engines.vllm_ticket import Ticket
from rljob_runtime.samples import Timing


class RequestTimes:
    """See the module's guarantees."""

    def __init__(self, tickets: Mapping[str, Ticket]) -> None:
        """`tickets`: of the submits that have not ended, the oldest first."""
        self._tickets = tickets
        self._pauses = Pauses()
        self._preemptions = 0

    def stops(self) -> None:
        """The engine stands still from now on."""
        self._pauses.begin(time.monotonic())

    def goes_on(self) -> None:
        """The reverse."""
        now = time.monotonic()
        self._pauses.end(now, self._oldest(now))

    def stood(self, since: float, until: float) -> None:
        """The engine stood still from then to then, in seconds of the monotonic clock."""
        self._pauses.add(since, until, self._oldest(until))

    def of(self, ticket: Ticket, marks: Sequence[Mark]) -> Timing:
        """Of a submit that ends now."""
        timing = timing_of(ticket.submitted, marks, time.monotonic(), self._pauses)
        self._preemptions += timing.preemptions
        return timing

    def take_preemptions(self) -> float:
        """How often submits that ended were pre-empted, since the last call."""
        taken, self._preemptions = self._preemptions, 0
        return float(taken)

    def _oldest(self, now: float) -> float:
        return next((each.submitted for each in self._tickets.values()), now)
