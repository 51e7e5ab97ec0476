"""What `vllm.VllmEngine` keeps of a submit while it has not ended."""

import asyncio
import time
from collections.abc import Iterable, Mapping

from rljob_runtime.engines.protocol import Request
from rljob_runtime.engines.spans import SpanRecorder
from rljob_runtime.engines.vllm_shape import LoadedAdapter


class Ticket:
    """A submit that has not ended. Made in the loop."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.adapter: LoadedAdapter | None = None
        """What it generates with beside the model's own weights."""
        self.spans: SpanRecorder | None = None
        """The versions of its tokens; None while it is not in the core."""
        self.submitted = time.monotonic()
        self.aborted = False
        self.gate: asyncio.Future[None] | None = None
        """While it waits for `resume`."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def open_gate(self) -> None:
        """Let it go on, if it waits for `resume`."""
        if self.gate is not None and not self.gate.done():
            self.gate.set_result(None)


def mark(tickets: Mapping[str, Ticket], version: int, counts: Mapping[str, int]) -> None:
    """The tokens of tickets in the core beyond `counts` are of this version."""
    for name, ticket in tickets.items():
        if ticket.spans is not None and name in counts:
            ticket.spans.mark(version, counts[name])


def unbegun(tickets: Mapping[str, Ticket], counts: Mapping[str, int]) -> list[str]:
    """Those in the core that have no token."""
    return [name for name, each in tickets.items() if each.spans is not None and counts.get(name) == 0]


def take_out(tickets: Mapping[str, Ticket], names: Iterable[str]) -> None:
    """These are not in the core any more, and enter anew; one that has ended meanwhile does not."""
    for name in names:
        if name in tickets:
            tickets[name].spans = None
