"""What this package tells about its own work, to whoever counts and measures it.

The package knows no metrics: the operator's `OperatorMetrics` is an observer.
"""


class KubeObserver:
    """Told of each thing as it happens. This one does nothing with it, which is what a command that makes a
    few calls needs; derive from it to count. No method may block or raise. Times are in seconds."""

    def api_called(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """A request has its whole answer, after so many seconds; a watch, the beginning of it. `code` is the
        HTTP status, `none` where that did not come."""

    def write_waited(self, seconds: float) -> None:
        """A write waited for the client-side rate limit."""

    def listing(self, resource: str) -> None:
        """An informer begins to list all objects of a type."""

    def change_received(self, resource: str) -> None:
        """A watch told of a changed object."""

    def watch_ended(self, resource: str, cause: str) -> None:
        """A watch ended: `closed` (by the server, in time), `gone` (its version is too old) or `failed`."""

    def objects_held(self, resource: str, count: int) -> None:
        """An informer holds so many objects now."""

    def queue_length(self, ready: int, delayed: int) -> None:
        """So many keys of the work queue wait for a worker, and so many for a time to come."""

    def queue_waited(self, seconds: float) -> None:
        """A key that was ready has got a worker."""

    def handled(self, outcome: str, seconds: float) -> None:
        """The handler of a key ended: `done`, `failed` or `late` (over its time limit)."""

    def leads(self, holds_lease: bool) -> None:
        """This replica has got the lease, or has it no longer."""

    def lease_renewed(self, outcome: str) -> None:
        """An attempt to renew the lease ended: `done` or `failed`."""

    def event_reported(self, outcome: str) -> None:
        """An Event was `created`, `repeated` (counted into one that is there), `dropped` (too many, or
        its namespace is being deleted) or `failed`."""
