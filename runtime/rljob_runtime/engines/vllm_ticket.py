"""What `vllm.VllmEngine` keeps of a submit while it has not ended."""

import asyncio
import time

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
