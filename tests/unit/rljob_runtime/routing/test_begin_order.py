"""In which order adaptive routing lets the responses of a training step begin."""

from collections.abc import Iterable, Mapping, Sequence

import pytest

from rljob_runtime.routing.begin_order import BeginOrder
from rljob_runtime.routing.book import Book, EngineState, RequestState
from rljob_runtime.routing.lengths import Lengths
from rljob_runtime.routing.requests import EngineShape, GroupRequest, RequestKey
from tests.support.simulated.routed import group_of
from tests.support.simulated.routed_by_length import CAP, STEEP

Order = list[tuple[int, int]]
"""Group and number of each response."""
LIMITS = pytest.mark.parametrize("limit", [1, 2], ids=["open last", "longest first"])
"""Of the batch of `mixed` open groups go last where its two engines have one place each, and where they have
two the longest go first."""


class Batch:
    """Groups on engines with so many places each. Group n is of row n; an earlier epoch has told how long the
    responses to the rows in `known` are."""

    def __init__(
        self, samples: Sequence[int], limits: Sequence[int], known: Iterable[int] = (),
        groups_per_step: int | None = None,
    ) -> None:  # fmt: skip
        """`samples`: responses of each group."""
        self.lengths = Lengths(CAP)
        self.order = BeginOrder(self.lengths, groups_per_step)
        self.book = Book()
        self._groups = 0
        for row in known:
            self.lengths.finished(group_of([100], row=row))
        self.engines = [
            self.book.join(number, EngineShape("fast", limit, None, STEEP))
            for number, limit in enumerate(limits)
        ]
        self.add(samples)

    def add(self, samples: Sequence[int]) -> None:
        first = self._groups
        self._groups += len(samples)
        for uid, count in enumerate(samples, first):
            self.order.began(self.book.add(GroupRequest(uid, uid, 10, count)))

    def plan(self, members: Sequence[EngineState] | None = None) -> bool:
        return self.order.plan(self.engines if members is None else members, self.book)

    def request(self, uid: int, sample: int = 0) -> RequestState:
        return self.book.request(RequestKey(uid, sample))

    def runs(self, tokens: Mapping[tuple[int, int], int]) -> None:
        """These responses run, and have so many tokens."""
        for (uid, sample), count in tokens.items():
            engine = next(engine for engine in self.engines if engine.room)
            self.book.place(self.request(uid, sample), engine)
            self.book.progress({RequestKey(uid, sample): count})

    def finish(self, uid: int, sample: int, tokens: int = 100) -> bool:
        """Whether the order is another one by that."""
        group = self.book.groups[uid]
        self.book.place(self.request(uid, sample), next(each for each in self.engines if each.room))
        self.book.finished(self.request(uid, sample), tokens)
        self.lengths.finished(group)
        return self.order.told(group)

    def give_up(self, uid: int) -> bool:
        """Whether the order is another one by that."""
        group = self.book.groups[uid]
        self.book.cancel(uid)
        return self.order.told(group)

    def unalike(self) -> None:
        """Lengths of siblings differ as much as those of any two responses."""
        for row in range(1000, 1020):
            self.lengths.finished(group_of([100, 10_000], row=row))
            self.lengths.finished(group_of([10_000, 100], row=row))

    @property
    def state(self) -> tuple[bool, set[int]]:
        """Whether the longest go first, and the steps of which open groups go last."""
        return self.order.longest_first, set(self.order.open_last)

    def waiting(self, totals: Mapping[int, float]) -> Order:
        """All that wait, in the order in which they begin. `totals`: tokens expected of each group's."""
        waiting = [
            request
            for group in self.book.groups.values()
            for request in group.requests.values()
            if request.waits
        ]
        waiting.sort(key=lambda each: (self.order.rank(each, totals[each.key.uid]), each.key))
        return [(each.key.uid, each.key.sample) for each in waiting]


def of_group(uid: int, first: int = 1) -> Order:
    """The responses of a group of four, from this one on."""
    return [(uid, sample) for sample in range(first, 4)]


# Which groups are open


@pytest.mark.parametrize(
    ("known", "ends", "is_open"),
    [
        ([], [], True),
        ([1], [], True),
        ([0], [], False),
        ([], [1], True),
        ([], [0], False),
        ([0], [0], False),
    ],
    ids=["nothing", "another row", "an earlier epoch", "another group's", "its own", "both"],
)
def test_a_group_is_open_until_one_of_its_responses_is_complete_or_an_earlier_epoch_tells_of_its_row(
    known: Sequence[int], ends: Sequence[int], is_open: bool
) -> None:
    """However long one of its responses runs."""
    of = Batch([4] * 6, [1, 1], known)
    of.plan()
    for uid in ends:
        of.finish(uid, 0)
    of.runs({(0, 1): 5000})
    assert opens(of, 0) is is_open


def test_a_group_stays_open_when_another_one_of_its_row_ends() -> None:
    """What it learns so late it has not begun with; one that begins later has."""
    of = Batch([4] * 6, [1, 1])
    of.plan()
    of.lengths.finished(group_of([100], row=0))
    later = of.book.add(GroupRequest(6, 0, 10, 4))
    of.order.began(later)
    assert (opens(of, 0), opens(of, 6)) == (True, False)


def opens(of: Batch, uid: int) -> bool:
    """Whether this group is open, as group 5 is: it goes last then, by length, and not before that one."""
    assert of.order.open_last == {0}
    return of.order.rank(of.request(uid, 2), 1000.0) > of.order.rank(of.request(5, 2), 20_000.0)


# In which order they begin


def mixed(limit: int) -> Batch:
    """Groups 2, 3 and 4 are open, and the probes of the latter two run; nine siblings wait for the three. The
    other six are known."""
    of = Batch([4] * 9, [limit, limit], known=[0, 1, 5, 6, 7, 8])
    of.runs({(3, 0): 200, (4, 0): 100})
    of.plan()
    assert of.state == (True, {0} if limit == 1 else set())
    return of


TOTALS = {0: 500.0, 1: 110.0, 2: 300.0, 3: 300.0, 4: 900.0, 5: 20.0, 6: 20.0, 7: 20.0, 8: 20.0}


def test_while_many_of_open_groups_wait_probes_begin_then_the_shortest_known_and_then_the_open_ones() -> None:
    order = mixed(limit=1).waiting(TOTALS)
    probes, known, those_open = order[:7], order[7:25], order[25:]
    assert probes == [(uid, 0) for uid in (0, 1, 2, 5, 6, 7, 8)]
    assert known == [key for uid in (5, 6, 7, 8, 1, 0) for key in of_group(uid)]
    # 900 tokens are expected; twice the 200 that the probe has; and 300 are expected.
    assert those_open == of_group(4) + of_group(3) + of_group(2)


def test_afterwards_probes_begin_and_then_the_longest() -> None:
    order = mixed(limit=2).waiting(TOTALS)
    assert order[:7] == [(uid, 0) for uid in (0, 1, 2, 5, 6, 7, 8)]
    assert order[7:] == [key for uid in (4, 0, 3, 2, 1, 5, 6, 7, 8) for key in of_group(uid)]


@LIMITS
@pytest.mark.parametrize("uid", [0, 2], ids=["known", "open"])
@pytest.mark.parametrize(("tokens", "is_first"), [(0, True), (1, False)])
def test_a_first_response_that_was_interrupted_is_no_probe_any_more(
    limit: int, uid: int, tokens: int, is_first: bool
) -> None:
    of = mixed(limit)
    of.request(uid).tokens = tokens
    probe, sibling = (of.order.rank(of.request(uid, sample), 300.0) for sample in (0, 1))
    assert (probe < sibling) is is_first and (probe == sibling) is not is_first


@LIMITS
@pytest.mark.parametrize(
    ("tokens", "total", "counts"),
    [
        ((0, 0, 0), 300.0, 300.0),
        ((150, 0, 0), 300.0, 300.0),
        ((151, 0, 0), 300.0, 302.0),
        ((40, 400, 90), 300.0, 800.0),
        ((40, 400, 90), 900.0, 900.0),
    ],
)
def test_an_open_group_counts_at_least_twice_its_longest_response(
    limit: int, tokens: Sequence[int], total: float, counts: float
) -> None:
    of = mixed(limit)
    for sample, count in enumerate(tokens):
        of.request(2, sample).tokens = count
    rank = of.order.rank(of.request(2, 3), total)
    # Group 4 is open as well, and its longest response has 100 tokens.
    assert rank == of.order.rank(of.request(4, 3), counts)
    assert rank < of.order.rank(of.request(4, 3), counts - 1)


@LIMITS
def test_a_known_group_counts_what_is_expected_of_it(limit: int) -> None:
    of = mixed(limit)
    before = of.order.rank(of.request(0, 3), 300.0)
    of.request(0).tokens = 5000
    assert of.order.rank(of.request(0, 3), 300.0) == before


@pytest.mark.parametrize(
    ("known", "open_last"),
    [((0, 1, 2, 6, 7, 8), {0, 1}), (range(6, 12), {0}), (range(6), {1}), (range(12), set())],
    ids=["open last", "open last in this step", "open last in the next step", "longest first"],
)
def test_nothing_begins_before_what_an_earlier_step_trains(known: Iterable[int], open_last: set[int]) -> None:
    """The last of one step, as its shortest or of an open group, is before the probes of the next one."""
    of = Batch([4] * 12, [1, 1], known, groups_per_step=6)
    of.plan()
    assert of.state == (True, open_last)
    order = of.waiting({uid: 9000.0 if uid >= 6 else 10.0 for uid in range(12)})
    assert [uid // 6 for uid, _ in order] == [0] * 24 + [1] * 24


def test_all_groups_are_of_one_step_where_a_step_takes_whatever_there_is() -> None:
    of = Batch([4] * 12, [1, 1], known=range(12))
    of.plan()
    order = of.waiting({uid: 100.0 + uid for uid in range(12)})
    assert order[:12] == [(uid, 0) for uid in range(12)]
    assert order[12:] == [key for uid in reversed(range(12)) for key in of_group(uid)]


def test_in_a_small_batch_all_are_alike_whatever_is_expected_of_them() -> None:
    """One response fewer than six times what runs at a time, and all of them of open groups."""
    of = Batch([4, 4, 3], [1, 1])
    assert not of.plan()
    assert of.state == (False, set())
    of.request(2).tokens = 7
    ranks = {of.order.rank(of.request(uid, sample), 10.0**uid) for uid in range(3) for sample in range(3)}
    assert len(ranks) == 1


# From when on, and until when


@pytest.mark.parametrize(
    ("open_samples", "limits", "open_last"),
    [
        ([5, 5, 5, 5], [2, 2], False),
        ([5, 5, 5, 5, 2], [2, 2], True),
        ([5, 5, 5, 5], [1, 3], False),
        ([5, 5, 5, 5, 2], [1, 3], True),
        ([5, 5, 5, 5, 1, 1, 1], [2, 2], False),
        ([9, 9], [2, 2], False),
        ([9, 10], [2, 2], True),
        ([5, 5], [1, 1], False),
        ([5, 6], [1, 1], True),
        ([], [2, 2], False),
    ],
)  # fmt: skip
def test_open_groups_go_last_where_more_than_four_times_as_many_siblings_wait_for_them_as_run_at_a_time(
    open_samples: Sequence[int], limits: Sequence[int], open_last: bool
) -> None:
    """One of each group is its probe, for which the others wait. The 24 of known groups beside them do not
    count."""
    count = len(open_samples)
    of = Batch([*open_samples, *[4] * 6], limits, known=range(count, count + 6))
    of.plan()
    assert of.state == (True, {0} if open_last else set())


def test_siblings_of_an_open_group_count_when_they_run_as_well() -> None:
    of = Batch([5, 5, 2], [1, 1])
    of.runs({(0, 0): 10, (0, 1): 10})
    of.plan()
    assert of.state == (True, {0})


@pytest.mark.parametrize(
    ("are_open", "groups_per_step", "open_last"),
    [
        (range(12), 6, {0, 1}),
        (range(6), 6, {0}),
        (range(6, 12), 6, {1}),
        (range(3, 9), 6, set()),
        (range(2, 9), 6, {0}),
        (range(3, 10), 6, {1}),
        (range(3, 9), None, {0}),
    ],
)
def test_open_groups_of_each_step_count_by_themselves(
    are_open: range, groups_per_step: int | None, open_last: set[int]
) -> None:
    """Twelve groups of five, and three open ones of a step would be at the limit of 12."""
    of = Batch([5] * 12, [1, 2], set(range(12)) - set(are_open), groups_per_step)
    of.plan()
    assert of.state == (True, open_last)


def test_open_groups_go_last_in_one_step_while_those_of_another_do_not() -> None:
    """In step 0 two groups are open, of six siblings; in step 1 all six are."""
    of = Batch([4] * 12, [1, 1], known=range(4), groups_per_step=6)
    of.plan()
    assert of.state == (True, {1})
    siblings = [of.request(uid, 1) for uid in (0, 4, 6)]
    known, first, second = (of.order.rank(each, 300.0) for each in siblings)
    assert known == first < second
    assert second > of.order.rank(of.request(6, 0), 300.0)
    assert of.order.rank(of.request(4, 1), 301.0) < known


@pytest.mark.parametrize(("unalike", "open_last"), [(False, {0}), (True, set())])
def test_open_groups_do_not_wait_where_siblings_are_not_alike(unalike: bool, open_last: set[int]) -> None:
    """A probe would tell nothing of the others."""
    of = Batch([4] * 6, [1, 1])
    if unalike:
        of.unalike()
    assert of.lengths.alike is not unalike
    of.plan()
    assert of.state == (True, open_last)


def test_open_groups_do_not_wait_any_more_once_siblings_are_known_not_to_be_alike() -> None:
    of = Batch([4] * 6, [1, 1])
    of.plan()
    of.unalike()
    assert of.state == (True, {0})
    assert of.finish(0, 0)
    assert of.state == (True, set())


def test_an_engine_without_its_like_needs_no_order() -> None:
    of = Batch([4] * 12, [2, 2])
    assert not of.plan(of.engines[:1])
    assert of.state == (False, set())


def test_a_plan_tells_whether_the_order_has_changed() -> None:
    of = Batch([4, 4], [1, 1])

    def plans() -> list[tuple[bool, tuple[bool, set[int]]]]:
        return [(of.plan(), of.state) for _ in range(2)]

    assert plans() == [(False, (False, set()))] * 2
    of.add([4])
    assert plans() == [(True, (True, {0})), (False, (True, {0}))]
    assert of.finish(0, 0)
    assert plans() == [(False, (True, set()))] * 2, "that was told when the response ended"
    of.add([4])
    assert plans() == [(True, (True, {0})), (False, (True, {0}))]
    for uid in range(4):
        for sample in list(of.book.groups[uid].requests):
            of.finish(uid, sample)
    assert plans() == [(True, (False, set())), (False, (False, set()))]


def test_with_more_engines_open_groups_wait_no_more() -> None:
    of = Batch([4] * 6, [1, 1, 1])
    assert of.plan(of.engines[:2]) and of.state == (True, {0})
    of.engines[2].shape = of.engines[2].shape._replace(limit=3)
    assert of.plan() and of.state == (True, set())


@pytest.mark.parametrize("given_up", [False, True], ids=["ends", "is given up"])
def test_the_order_changes_in_the_moment_in_which_few_enough_groups_are_open(given_up: bool) -> None:
    """Of five open groups of four with 15 siblings the third to be told of leaves 6, and 8 may wait."""
    of = Batch([4] * 5, [1, 1])
    of.plan()
    told = [of.give_up(uid) if given_up else of.finish(uid, 0) for uid in range(5)]
    assert told == [False, False, True, False, False]
    assert of.state == (True, set())


def test_a_group_is_told_of_once() -> None:
    """Its later responses, and that it is given up, change nothing."""
    of = Batch([4] * 4, [1, 1])
    of.plan()
    assert [of.finish(0, 0), of.finish(0, 1), of.give_up(0)] == [False] * 3
    assert of.state == (True, {0})
    assert of.finish(1, 0) and of.state == (True, set())


def test_the_order_stays_until_everything_has_begun() -> None:
    of = Batch([4] * 3, [1, 1], known=range(3))
    of.plan()
    left = [(uid, sample) for uid in range(3) for sample in range(4)]
    while len(left) > 1:
        of.finish(*left.pop(), 100)
        assert not of.plan() and of.order.longest_first, len(left)
    of.runs({left[0]: 10})
    assert of.plan() and not of.order.longest_first
