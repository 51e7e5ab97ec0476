"""The queue's rules as a state machine: no sockets, no threads, time is passed in.

Guarantees:
- a group that was accepted is ready, leased to exactly one client, acknowledged or cleared; the counters sum:
  accepted == acknowledged + cleared + ready + leased, in groups;
- the samples of ready and leased groups never exceed the capacity: a put that does not fit waits, in order of
  arrival, and room comes back with the acknowledgement. (In a running job no put waits: the driver admits no
  more groups than the queue has room for, see `groups.staleness`.);
- which groups are trained together is not decided here: a get names its groups (the driver selects them, see
  `groups.staleness`) and is met once all of them are ready;
- a client that is silent for longer than the lease time loses its leases and its waiting requests; its groups
  are ready again. What it acknowledges late is still done, for it was trained;
- a group that is done is never accepted or handed out again;
- a group of an earlier term (before the job went back to a checkpoint) cannot be acknowledged.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.queue.wire import QueuedGroup, Stats

Ticket: TypeAlias = tuple[str, int]
"""A request: the client and the client's number for it."""


class Stored(NamedTuple):
    """A put has ended."""

    ticket: Ticket
    accepted: tuple[bool, ...]
    """For each group whether the queue has it; False where its uid is done or stands for another group."""


class Granted(NamedTuple):
    """A get has ended: these groups are leased to the client."""

    ticket: Ticket
    groups: tuple[QueuedGroup, ...]


class Impossible(NamedTuple):
    """A request can never be met."""

    ticket: Ticket
    why: str


Outcome: TypeAlias = Stored | Granted | Impossible


class GroupTooLarge(ValueError):
    """A group has more samples than the queue may hold."""


class WrongTerm(ValueError):
    """The job went back to a checkpoint in between."""


class _Counters:
    def __init__(self) -> None:
        self.accepted = 0
        self.duplicates = 0
        self.acknowledged = 0
        self.acknowledged_again = 0
        self.acknowledged_unseen = 0
        self.stale_acknowledgements = 0
        self.released = 0
        self.expired = 0
        self.cleared = 0


@dataclass(slots=True)
class _WaitingPut:
    groups: Sequence[QueuedGroup]
    accepted: list[bool] = field(default_factory=list)
    """For the first of the groups whether the queue has them; the others have no room yet."""


@dataclass(slots=True)
class _WaitingGet:
    client: str
    uids: tuple[int, ...]
    unseen: set[int]
    """Those of `uids` that were not found ready yet; see `Broker._can_meet`."""


class Broker:
    """See the module's guarantees. An operation returns the requests that it brought to an end."""

    def __init__(self, capacity_samples: int, lease_seconds: float, term: int = 0) -> None:
        if capacity_samples < 1 or lease_seconds <= 0:
            raise ValueError("the queue needs a capacity of at least 1 sample and a lease time above 0")
        self.capacity_samples = capacity_samples
        self.lease_seconds = lease_seconds
        self.term = term
        self._held: dict[int, QueuedGroup] = {}
        self._held_samples = 0
        self._holders: dict[int, str] = {}
        """For each group on lease the client that has it; the other held groups are ready."""
        self._done = Ledger()
        self._deadlines: dict[str, float] = {}
        """When each client is overdue."""
        self._puts: OrderedDict[Ticket, _WaitingPut] = OrderedDict()
        self._gets: OrderedDict[Ticket, _WaitingGet] = OrderedDict()
        self._counters = _Counters()

    # Clients

    def touch(self, client: str, now: float) -> None:
        """The client lives: its leases are good for another lease time."""
        self._deadlines[client] = now + self.lease_seconds

    def next_deadline(self) -> float | None:
        """When the next client is overdue; None without clients."""
        return min(self._deadlines.values(), default=None)

    def overdue(self, now: float) -> list[str]:
        """The clients that were silent for too long: `gone` is to be called for them."""
        return [client for client, deadline in self._deadlines.items() if deadline <= now]

    def gone(self, client: str) -> list[Outcome]:
        """The client has left: its waiting requests end without an outcome, its groups are ready again."""
        if self._deadlines.pop(client, None) is None:
            return []
        for ticket in [ticket for ticket in self._puts if ticket[0] == client]:
            del self._puts[ticket]
        for ticket in [ticket for ticket in self._gets if ticket[0] == client]:
            del self._gets[ticket]
        leases = [uid for uid, holder in self._holders.items() if holder == client]
        self._counters.expired += len(leases)
        self._return(leases)
        return self._settle()

    def withdraw(self, ticket: Ticket) -> list[Outcome]:
        """Nobody waits for this request any longer. What a put has stored so far stays."""
        self._puts.pop(ticket, None)
        self._gets.pop(ticket, None)
        return self._settle()

    # Groups. The client of a ticket has been passed to `touch`.

    def put(self, ticket: Ticket, groups: Sequence[QueuedGroup]) -> list[Outcome]:
        """Store these, in order, as room allows. Raises `GroupTooLarge`, and stores none, if one can never
        fit."""
        for group in groups:
            if group.samples > self.capacity_samples:
                raise GroupTooLarge(
                    f"group {group.uid} has {group.samples} samples but the queue holds only "
                    f"{self.capacity_samples}: raise async.queueCapacity or lower rollout.samplesPerPrompt"
                )
        self._puts[ticket] = _WaitingPut(groups)
        return self._settle()

    def get(self, ticket: Ticket, uids: Sequence[int]) -> list[Outcome]:
        """Lease exactly these, once all are there. Those that the client has on lease already are handed
        out again."""
        for uid in uids:
            if uid in self._done:
                return [Impossible(ticket, f"group {uid} is done")]
        self._gets[ticket] = _WaitingGet(ticket[0], tuple(uids), set(uids))
        return self._settle()

    def ack(self, uids: Iterable[int], term: int) -> tuple[list[bool], list[Outcome]]:
        """Record that these were trained; `term` is that in which they were leased. True for each not done
        before. Raises `WrongTerm`, and records none, when that term is over."""
        uids = tuple(uids)
        if term != self.term and uids:
            self._counters.stale_acknowledgements += len(uids)
            raise WrongTerm(
                f"group {uids[0]} was taken in term {term} but the job went back to a checkpoint since (term "
                f"{self.term}): its training does not count"
            )
        fresh = self._record(uids)
        return fresh, [*self._end_gets_of(uids), *self._settle()]

    def release(self, client: str, uids: Iterable[int]) -> list[Outcome]:
        """The client gives back what it has on lease of these."""
        leases = {uid for uid in uids if self._holders.get(uid) == client}
        self._counters.released += len(leases)
        self._return(leases)
        return self._settle()

    def reset(self, term: int, watermark: int, ahead: Iterable[int]) -> tuple[int, list[Outcome]]:
        """The groups below `watermark` and those in `ahead` are done.

        A term above the current one means that the job went back to a checkpoint: nothing else is done, what
        is held is cleared, and no waiting request can be met. The current term adds to what is done. Returns
        how many groups were cleared; raises `WrongTerm` for an earlier term."""
        if term < self.term:
            raise WrongTerm(f"cannot go from term {self.term} back to term {term}")
        known = Ledger() if term > self.term else self._done
        below = max(known.watermark, watermark)
        self._done = Ledger(below, {uid for uid in {*known.ahead, *ahead} if uid >= below})
        # Moves the watermark up over what lies ahead of it without a gap.
        self._done.record(())
        outcomes: list[Outcome] = []
        if term > self.term:
            self.term = term
            why = "the job went back to a checkpoint"
            outcomes += [Impossible(ticket, why) for ticket in (*self._puts, *self._gets)]
            self._puts.clear()
            self._gets.clear()
            return self._clear(list(self._held)), outcomes
        outcomes += self._end_gets_of(uid for get in self._gets.values() for uid in get.uids)
        count = self._clear([uid for uid in self._held if uid in self._done])
        return count, [*outcomes, *self._settle()]

    def stats(self) -> Stats:
        """What is held, and what went through; `refused` is for the server to add."""
        counters = self._counters
        return Stats(
            capacity_samples=self.capacity_samples,
            term=self.term,
            ready=len(self._held) - len(self._holders),
            leased=len(self._holders),
            held_samples=self._held_samples,
            waiting_puts=len(self._puts),
            waiting_gets=len(self._gets),
            clients=len(self._deadlines),
            done=len(self._done),
            accepted=counters.accepted,
            duplicates=counters.duplicates,
            acknowledged=counters.acknowledged,
            acknowledged_again=counters.acknowledged_again,
            acknowledged_unseen=counters.acknowledged_unseen,
            stale_acknowledgements=counters.stale_acknowledgements,
            released=counters.released,
            expired=counters.expired,
            cleared=counters.cleared,
        )

    # What follows from the operations

    def _settle(self) -> list[Outcome]:
        """Meet what can be met: first puts, for they may complete a get."""
        outcomes: list[Outcome] = []
        while self._puts:
            ticket, put = next(iter(self._puts.items()))
            # In order of arrival: what waits behind it may fit, and is not let past.
            if not self._store(put):
                break
            del self._puts[ticket]
            outcomes.append(Stored(ticket, tuple(put.accepted)))
        for ticket, get in list(self._gets.items()):
            if self._can_meet(get):
                del self._gets[ticket]
                self._holders.update(dict.fromkeys(get.uids, get.client))
                outcomes.append(Granted(ticket, tuple([self._held[uid] for uid in get.uids])))
        return outcomes

    def _store(self, put: _WaitingPut) -> bool:
        """Store what has room; whether that was all."""
        held, done, counters = self._held, self._done, self._counters
        for index in range(len(put.accepted), len(put.groups)):
            group = put.groups[index]
            if group.uid in held or group.uid in done:
                counters.duplicates += 1
                # A client that lost its answer, or is not sure, puts the same group again.
                put.accepted.append(held.get(group.uid) == group)
                continue
            if self._held_samples + group.samples > self.capacity_samples:
                return False
            held[group.uid] = group
            self._held_samples += group.samples
            counters.accepted += 1
            put.accepted.append(True)
        return True

    def _can_meet(self, get: _WaitingGet) -> bool:
        """Whether all groups of a get can be leased. One that cannot suffices to say no, so that the puts a
        get waits for cost it one look each; all are looked at again at the end, for others may have taken
        some."""
        while get.unseen:
            uid = next(iter(get.unseen))
            if not self._can_lease(uid, get.client):
                return False
            get.unseen.discard(uid)
        get.unseen = {uid for uid in get.uids if not self._can_lease(uid, get.client)}
        return not get.unseen

    def _can_lease(self, uid: int, client: str) -> bool:
        return uid in self._held and self._holders.get(uid) in (None, client)

    def _return(self, uids: Collection[int]) -> None:
        """End the leases of these, which are ready again."""
        for uid in uids:
            del self._holders[uid]

    def _record(self, uids: Iterable[int]) -> list[bool]:
        """Record these as done; for each whether it was not done before."""
        counters, done = self._counters, self._done
        fresh: list[bool] = []
        new: set[int] = set()
        for uid in uids:
            if uid in self._held:
                self._remove(uid)
                counters.acknowledged += 1
            elif uid in new or uid in done:
                # Named twice in this acknowledgement, or done before.
                counters.acknowledged_again += 1
                fresh.append(False)
                continue
            else:
                counters.acknowledged_unseen += 1
            new.add(uid)
            fresh.append(True)
        done.record(new)
        return fresh

    def _clear(self, uids: Collection[int]) -> int:
        """Throw away these, which are held, leased or not. Returns how many."""
        for uid in uids:
            self._remove(uid)
        self._counters.cleared += len(uids)
        return len(uids)

    def _remove(self, uid: int) -> None:
        """Take a held group out of all accounts."""
        self._held_samples -= self._held.pop(uid).samples
        self._holders.pop(uid, None)

    def _end_gets_of(self, uids: Iterable[int]) -> list[Outcome]:
        """End the gets that wait for one of these and can never have it, for it is done."""
        if not self._gets:
            return []
        done = {uid for uid in uids if uid in self._done}
        outcomes: list[Outcome] = []
        for ticket, get in list(self._gets.items()):
            if hits := done.intersection(get.uids):
                del self._gets[ticket]
                outcomes.append(Impossible(ticket, f"group {min(hits)} is done"))
        return outcomes
