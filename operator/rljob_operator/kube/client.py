"""The client of this process's API server, whose writes are the operator's.

Guarantees:
- a write of a fenced client is sent only while its fences are open, which is looked at before each attempt:
  else it raises `LeaseLost`;
- writes are limited in rate; reads are not.
"""

from contextlib import ExitStack
from random import Random

from rljob_client import client
from rljob_client.client import ClientSettings
from rljob_client.transport import Call, Transport
from rljob_operator.kube.fence import Fence
from rljob_operator.kube.observer import KubeObserver
from rljob_operator.kube.token_bucket import TokenBucket


class ApiClient(client.ApiClient):
    """The verbs, over one `Transport`. `fenced` gives a client whose writes need a lease."""

    def __init__(
        self,
        transport: Transport,
        observer: KubeObserver,
        settings: ClientSettings,
        random: Random,
        bucket: TokenBucket | None = None,
        fences: tuple[Fence, ...] = (),
    ) -> None:
        """`bucket`: limits the rate of writes, together with whoever else takes from it; None: no limit."""
        super().__init__(transport, settings, random)
        self._observer = observer
        self._bucket = bucket
        self._fences = fences

    def fenced(self, *fences: Fence) -> "ApiClient":
        """The same client, whose writes raise `LeaseLost` once one of `fences` is closed."""
        more = (*self._fences, *fences)
        return ApiClient(self._transport, self._observer, self._settings, self._random, self._bucket, more)

    async def _send_write(self, call: Call) -> bytes:
        if self._bucket is not None:
            # First the token: the fence may close while it is waited for.
            self._observer.write_waited(await self._bucket.take())
        with ExitStack() as writing:
            left = [writing.enter_context(fence.write()) for fence in self._fences]
            return await self._transport.send(call, min([self._settings.timeout_seconds, *left]))
