"""The groups of steps to come, fetched from the queue and decoded while a step trains.

Guarantees: a step gets exactly the groups that it names, whatever was fetched before; which those are is not
decided here. A group that is fetched ahead is on lease like those of a step, and is done once it is trained
and acknowledged. No more than `most` are held ahead, and none that a step has taken: a queue host that is
replaced in the middle of a step is given its groups again, and that is told like any other. What could not be
fetched ahead is fetched when a step names it, and its failure is raised then.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from rljob_runtime.samples import Group, decode_group


class GroupsAhead:
    """See the module's guarantees. Calls may come from any thread."""

    def __init__(self, get: Callable[[Sequence[int]], Sequence[bytes]], most: int) -> None:
        """`get` takes groups from the queue, each on lease from then on; from any thread. It ends, also where
        the queue does not answer."""
        self._get = get
        self._most = most
        self._lock = Lock()
        self._told: dict[int, None] = {}
        """Groups that the queue has, and that are not fetched for want of room; in order."""
        self._held: dict[int, Future[Group]] = {}
        """Those that are fetched, or being fetched."""
        self._taken: deque[frozenset[int]] = deque(maxlen=2)
        """Those of the newest steps. Two: the driver keeps a step's groups until it has heard of its end, by
        which time the next one may have begun."""
        self._thread = ThreadPoolExecutor(1, "groups-ahead")

    def tell(self, uids: Iterable[int]) -> None:
        """The queue has these groups. Returns at once."""
        with self._lock:
            known = self._held.keys() | frozenset().union(*self._taken)
            self._told.update(dict.fromkeys(uid for uid in uids if uid not in known))
            self._fetch_more()

    def take(self, uids: Sequence[int]) -> list[Group]:
        """These groups, which are not held any more. Raises `QueueError`, `msgspec.DecodeError`."""
        with self._lock:
            self._taken.append(frozenset(uids))
            for uid in uids:
                self._told.pop(uid, None)
            ahead = {uid: self._held.pop(uid) for uid in uids if uid in self._held}
            # Those that are not begun come with the others, in one call.
            ahead = {uid: future for uid, future in ahead.items() if not future.cancel()}
        # Before what is asked for below: an answer that comes later than the acknowledgement would lease it
        # again.
        found = {uid: future.result() for uid, future in ahead.items() if future.exception() is None}
        missing = [uid for uid in uids if uid not in found]
        if missing:
            found |= zip(missing, map(decode_group, self._get(missing)), strict=True)
        with self._lock:
            self._fetch_more()
        return [found[uid] for uid in uids]

    def close(self) -> None:
        """Fetch nothing any more. What is being fetched is waited for: `get` is to have ended."""
        with self._lock:
            self._most = 0
        self._thread.shutdown(cancel_futures=True)

    def _fetch_more(self) -> None:
        """Fetch what was told first, as far as there is room; with the lock."""
        while self._told and len(self._held) < self._most:
            uid = next(iter(self._told))
            del self._told[uid]
            self._held[uid] = self._thread.submit(self._fetch, uid)

    def _fetch(self, uid: int) -> Group:
        try:
            (frame,) = self._get([uid])
            return decode_group(frame)
        except Exception:
            # A step that names it will try again, and tell. Until then it takes no room.
            with self._lock:
                self._held.pop(uid, None)
                self._fetch_more()
            raise
