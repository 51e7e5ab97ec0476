"""The queue's client for blocking code; its calls promise what those of `client` do."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from rljob_runtime.net.auth import ClientKeys, Endpoint
from rljob_runtime.queue.client import AsyncQueueClient, QueueUnavailable
from rljob_runtime.queue.wire import Stats

_T = TypeVar("_T")
_CLOSED = "this queue client was closed"


class QueueClient:
    """`AsyncQueueClient` for blocking code, with the same methods. Calls may come from any thread; a thread
    of its own keeps the leases meanwhile. One that comes while the client is closed, or after, fails at
    once."""

    def __init__(
        self, endpoint: Endpoint, keys: ClientKeys, name: str, patience_seconds: float = 30.0
    ) -> None:
        self._client = AsyncQueueClient(endpoint, keys, name, patience_seconds)
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        """Whether no call begins any more; with the lock, so that none comes to a loop that ends."""
        self._thread = threading.Thread(target=self._run, name=f"queue-client-{name}", daemon=True)
        self._thread.start()
        try:
            self._do(self._client.open())
        except BaseException:
            self._end_thread()
            raise

    def close(self) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._wait(asyncio.run_coroutine_threadsafe(self._client.close(), self._loop))
            self._end_thread()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        """Serve calls until the loop is stopped, and end those that are left."""
        self._loop.run_forever()
        if left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left))
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
        with self._lock:
            if self._closed:
                call.close()
                raise QueueUnavailable(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        return self._wait(future)

    def _wait(self, future: "concurrent.futures.Future[_T]") -> _T:
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise QueueUnavailable(_CLOSED) from None
        except BaseException:
            # Ctrl-C ends this wait, and not the call in the other thread.
            future.cancel()
            raise
