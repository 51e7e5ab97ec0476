"""The queue's client for blocking code; its calls promise what those of `client` do."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from rljob_runtime.net.auth import ClientKeys, Endpoint
from rljob_runtime.queue.client import AsyncQueueClient, QueueUnavailable
from rljob_runtime.queue.wire import Stats

_T = TypeVar("_T")


class QueueClient:
    """`AsyncQueueClient` for blocking code, with the same methods. Calls may come from any thread; a thread
    of its own keeps the leases meanwhile."""

    def __init__(
        self, endpoint: Endpoint, keys: ClientKeys, name: str, patience_seconds: float = 30.0
    ) -> None:
        self._client = AsyncQueueClient(endpoint, keys, name, patience_seconds)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"queue-client-{name}", daemon=True
        )
        self._thread.start()
        try:
            self._do(self._client.open())
        except BaseException:
            self._end_thread()
            raise

    def close(self) -> None:
        if not self._loop.is_closed():
            self._do(self._client.close())
            self._end_thread()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "QueueClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(self, groups: Sequence[tuple[int, int, bytes]], timeout: float) -> list[bool]:
        return self._do(self._client.put(groups, timeout))

    def get(self, uids: Sequence[int], timeout: float) -> list[bytes]:
        return self._do(self._client.get(uids, timeout))

    def ack(self, uids: Sequence[int], timeout: float = 60.0) -> list[bool]:
        return self._do(self._client.ack(uids, timeout))

    def reset(self, term: int, watermark: int, ahead: Iterable[int], timeout: float = 60.0) -> int:
        return self._do(self._client.reset(term, watermark, ahead, timeout))

    def stats(self, timeout: float = 60.0) -> Stats:
        return self._do(self._client.stats(timeout))

    def _do(self, call: Coroutine[Any, Any, _T]) -> _T:
        if self._loop.is_closed():
            call.close()
            raise QueueUnavailable("this queue client was closed")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C ends this wait, and not the call in the other thread.
            future.cancel()
            raise
