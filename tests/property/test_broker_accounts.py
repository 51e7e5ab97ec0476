"""Whatever happens, in whatever order: no group is lost, doubled, or in two hands."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rljob_runtime.queue.broker import Broker, Granted, Impossible, Stored, WrongTerm
from rljob_runtime.queue.wire import QueuedGroup
from tests.support.depth import examples

CAPACITY = 12
LEASE = 10.0
UIDS = st.integers(0, 15)
CLIENTS = st.sampled_from(["a", "b", "c"])
SOME_UIDS = st.lists(UIDS, min_size=1, max_size=5, unique=True)


class AnyHistory(RuleBasedStateMachine):
    """Drives a broker and keeps books of its own, from what it answers alone."""

    def __init__(self):
        super().__init__()
        self.broker = Broker(CAPACITY, LEASE)
        self.now = 0.0
        self.number = 0
        self.term = 0
        self.waiting_puts = {}
        self.waiting_gets = {}
        self.inside = {}
        """Accepted and not ended: the group."""
        self.holders = {}
        """On lease: the client."""
        self.ever = set()
        """Accepted at some time: what was a duplicate may be cleared before its put ends."""
        self.done = set()
        self.ended = Counter()
        self.accepted = 0

    def ticket(self, client):
        self.number += 1
        self.broker.touch(client, self.now)
        return client, self.number

    def note(self, outcomes):
        for outcome in outcomes:
            match outcome:
                case Stored(ticket, verdicts):
                    for group, verdict in zip(self.waiting_puts.pop(ticket), verdicts, strict=True):
                        known = group.uid in self.ever or group.uid in self.done
                        assert verdict or known, "a new group was taken for a duplicate"
                case Granted(ticket, groups):
                    wanted = self.waiting_gets.pop(ticket)
                    assert [group.uid for group in groups] == wanted
                    for group in groups:
                        self.inside.setdefault(group.uid, group)
                        assert group == self.inside[group.uid], "another group's content"
                        assert group.uid not in self.done
                        assert self.holders.get(group.uid) in (None, ticket[0]), "in two hands"
                        self.holders[group.uid] = ticket[0]
                case Impossible(ticket, _):
                    self.waiting_puts.pop(ticket, None)
                    self.waiting_gets.pop(ticket, None)

    @rule(client=CLIENTS, uids=SOME_UIDS, samples=st.integers(1, 6))
    def put(self, client, uids, samples):
        ticket = self.ticket(client)
        groups = [QueuedGroup(uid, samples, f"{uid} of {ticket}".encode()) for uid in uids]
        self.waiting_puts[ticket] = groups
        self.see(self.broker.put(ticket, groups))

    @rule(client=CLIENTS, uids=SOME_UIDS)
    def get(self, client, uids):
        ticket = self.ticket(client)
        self.waiting_gets[ticket] = uids
        self.see(self.broker.get(ticket, uids))

    @rule(uids=SOME_UIDS, late=st.booleans())
    def ack(self, uids, late):
        """By whomever: the broker cannot tell a slow client from a dead one."""
        if late and self.term:
            try:
                self.broker.ack(uids, self.term - 1)
            except WrongTerm:
                return
            raise AssertionError("training of an earlier term was counted")
        fresh, outcomes = self.broker.ack(uids, self.term)
        for uid, new in zip(uids, fresh, strict=True):
            assert new == (uid not in self.done), "ended twice"
            self.done.add(uid)
            self.end(uid, "acknowledged")
        self.see(outcomes)

    @rule(client=CLIENTS, uids=SOME_UIDS)
    def release(self, client, uids):
        self.broker.touch(client, self.now)
        mine = [uid for uid in uids if self.holders.get(uid) == client]
        before = self.broker.stats().released
        outcomes = self.broker.release(client, uids)
        assert self.broker.stats().released == before + len(mine)
        for uid in mine:
            del self.holders[uid]
        self.see(outcomes)

    @rule(client=CLIENTS)
    def heartbeat(self, client):
        self.broker.touch(client, self.now)

    @rule(seconds=st.floats(0.1, 15))
    def time_passes(self, seconds):
        self.now += seconds
        for client in self.broker.overdue(self.now):
            self.leave(client)

    @rule(client=CLIENTS)
    def leave(self, client):
        for tickets in (self.waiting_puts, self.waiting_gets):
            for ticket in [ticket for ticket in tickets if ticket[0] == client]:
                del tickets[ticket]
        self.holders = {uid: holder for uid, holder in self.holders.items() if holder != client}
        self.see(self.broker.gone(client))

    @precondition(lambda self: self.waiting_puts or self.waiting_gets)
    @rule(data=st.data())
    def withdraw(self, data):
        ticket = data.draw(st.sampled_from([*self.waiting_puts, *self.waiting_gets]))
        self.waiting_puts.pop(ticket, None)
        self.waiting_gets.pop(ticket, None)
        self.see(self.broker.withdraw(ticket))

    @rule(back=st.booleans(), watermark=st.integers(0, 8), ahead=st.sets(UIDS, max_size=3))
    def reset(self, back, watermark, ahead):
        self.term += back
        told = {*range(watermark), *ahead}
        self.done = told if back else self.done | told
        gone = [uid for uid in self.inside if back or uid in self.done]
        count, outcomes = self.broker.reset(self.term, watermark, ahead)
        assert count == len(gone)
        for uid in gone:
            self.end(uid, "cleared")
        self.see(outcomes)

    def end(self, uid, how):
        self.holders.pop(uid, None)
        if self.inside.pop(uid, None) is not None:
            self.ended[how] += 1

    def see(self, outcomes):
        """Note what came of it. What a put stored before all of it had room shows inside the broker alone."""
        held = dict(self.broker._held)
        assert set(self.inside) <= set(held), "a group was lost"
        for uid in set(held) - set(self.inside):
            assert uid not in self.done
            self.accepted += 1
            self.ever.add(uid)
        self.inside = held
        self.note(outcomes)

    @invariant()
    def accounts_sum(self):
        stats = self.broker.stats()
        assert stats.accepted == self.accepted
        assert stats.acknowledged == self.ended["acknowledged"]
        assert stats.cleared == self.ended["cleared"]
        assert stats.accepted == stats.acknowledged + stats.cleared + stats.ready + stats.leased
        assert stats.leased == len(self.holders)
        assert stats.done == len(self.done)
        assert stats.held_samples == sum(group.samples for group in self.inside.values()) <= CAPACITY

    @invariant()
    def nobody_waits_for_what_is_there(self):
        ready = set(self.inside) - set(self.holders)
        for ticket, wanted in self.waiting_gets.items():
            mine = {uid for uid, holder in self.holders.items() if holder == ticket[0]}
            assert not set(wanted) <= ready | mine
            assert not set(wanted) & self.done
        if self.waiting_puts:
            groups = next(iter(self.waiting_puts.values()))
            missing = [
                group for group in groups if group.uid not in self.inside and group.uid not in self.done
            ]
            used = sum(group.samples for group in self.inside.values())
            assert any(used + group.samples > CAPACITY for group in missing)


AnyHistory.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase
