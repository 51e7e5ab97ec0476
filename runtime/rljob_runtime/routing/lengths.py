"""How long responses will be: an estimate that every finished sibling, every running one, and the history of
the prompt improves.

Lengths are taken for lognormal, with one variance between prompts and one among the responses to a prompt
(the decomposition of variance of a one-way random-effects model). A group's mean is the posterior given the
finished siblings, what the same row gave in earlier epochs, as far as these tell (`history`), and the running
siblings that are longer than expected already: those count with the mean of the truncated distribution, for
short responses end first, and a mean of finished ones alone would be too small (Tobit; one step of
expectation-maximization).

Lengths need not be lognormal: uniform ones, and such with peaks, have shorter tails. So nothing more is
expected than what follows from hazards (`survival`). Where siblings tell little of each other these are of
all responses. Where they are alike they are of groups, by the longest response of each: none is expected to
be longer than the longest of its group.

Pure. Lengths are in response tokens.
"""

import math
from collections import OrderedDict, deque
from statistics import NormalDist

from rljob_runtime.routing.book import GroupState, RequestState
from rljob_runtime.routing.history import HistoryTrust, weight
from rljob_runtime.routing.survival import Survival

_NORMAL = NormalDist()
_WINDOW = 2048
"""Finished responses that the overall mean and variances are taken from."""
_COHORT = 512
"""Groups of which hazards are taken."""
_UNALIKE = 0.85
"""Deviation within groups, as a part of that of all responses, from which on siblings tell little."""
_ROWS = 200_000
"""Rows whose history is kept."""
_HISTORY_WEIGHT = 0.5
"""What a response of an earlier epoch counts beside one of today, at most: the policy has changed since."""
_ENOUGH = 8
"""Values from which on deviations are taken from what was seen."""
_ROOT_2 = math.sqrt(2)
_FAR = 30.0
"""Standard deviations from which on a normal variable's tail is approximated."""
_LEAST_SD = 0.1
"""Least standard deviation, in log tokens: no response's length is known before its end."""


def truncated_mean(mean: float, sd: float, least: float) -> float:
    """Mean of a normal variable, given that it is above `least`."""
    z = (least - mean) / sd
    # Far out the tail's probability is below what floats can hold; its hazard grows like z (Mills).
    hazard = z + 1 / z if z > _FAR else _NORMAL.pdf(z) / _above(z)
    return mean + sd * hazard


def expected_total(mean: float, sd: float, least: int) -> float:
    """Expected length, in tokens, of a lognormal response that has `least` tokens already; `mean` and `sd` of
    its logarithm."""
    if least <= 0:
        return math.exp(mean + sd * sd / 2)
    z = (math.log(least) - mean) / sd
    if z > _FAR:
        # The excess over `least` is about exponential in the logarithm, with rate z.
        return least * z / max(1.0, z - sd)
    return math.exp(mean + sd * sd / 2) * math.erfc((z - sd) / _ROOT_2) / math.erfc(z / _ROOT_2)


def _above(z: float) -> float:
    """Probability that a standard normal variable is above z."""
    return math.erfc(z / _ROOT_2) / 2


class _Window:
    """The newest values, with their sum and the sum of their squares."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_WINDOW)
        self._dropped = 0
        """Values that have left the window since the sums were last taken anew."""
        self._sum = self._squares = 0.0

    def __len__(self) -> int:
        return len(self._values)

    def push(self, value: float) -> None:
        if len(self._values) == _WINDOW:
            oldest = self._values[0]
            self._sum -= oldest
            self._squares -= oldest * oldest
            self._dropped += 1
        self._values.append(value)
        self._sum += value
        self._squares += value * value
        if self._dropped == _WINDOW:
            # What rounding has left in the sums does not grow with the time that a job runs.
            self._dropped = 0
            self._sum = math.fsum(self._values)
            self._squares = math.fsum(each * each for each in self._values)

    @property
    def mean(self) -> float:
        return self._sum / len(self._values)

    @property
    def sd(self) -> float:
        return math.sqrt(max(0.0, self._squares / len(self._values) - self.mean**2))


class Lengths:
    """See the module. `longest` is the most tokens that a response may have."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._logs = _Window()
        self._within = _Window()
        """Squared deviations of responses from the mean of their group's earlier ones, made comparable."""
        self._rows: OrderedDict[int, tuple[float, int]] = OrderedDict()
        """Mean logarithm and number of the responses of each row, newest rows last."""
        self._cohort: deque[GroupState] = deque(maxlen=_COHORT)
        """Groups in the order of dispatch, complete ones as well: of those that are under way alone, the long
        ones are too many."""
        self._responses: Survival | None = None
        """Hazards of responses; None where siblings are alike, or nothing is known."""
        self._groups: Survival | None = None
        """Hazards of groups, by the longest response of each; None where siblings tell little, or nothing is
        known."""
        self._trust = HistoryTrust()
        self._overall: tuple[float, float, float, float] | None = None
        """Of the logarithms of all lengths: the mean, the deviation within a group, the variance between
        groups, and how far earlier epochs are right. None where a response has ended since they
        were computed."""

    # What is seen

    def began(self, group: GroupState, under_way: int) -> None:
        """This group is dispatched, and `under_way` groups are not complete."""
        # Groups that begin while the longest responses are generated must not be more than are kept.
        if group.request.uid % (1 + 2 * under_way // _COHORT) == 0:
            self._cohort.append(group)

    def fit_hazards(self) -> None:
        """Take hazards anew, by how far all responses are now."""
        self._responses = self._groups = None
        if not self.known:
            return
        if self.alike:
            ended = sorted(max(1, _longest(group)) for group in self._cohort if not group.requests)
            running = sorted(
                tokens for group in self._cohort if group.requests and (tokens := _longest(group))
            )
            self._groups = Survival(ended, running)
            return
        ended = sorted(max(1, tokens) for group in self._cohort for tokens in group.finished)
        running = sorted(
            request.tokens for group in self._cohort for request in group.requests.values() if request.tokens
        )
        self._responses = Survival(ended, running)

    def finished(self, group: GroupState) -> None:
        """A response of this group is complete: the last of `group.finished`."""
        log = math.log(max(1, group.finished[-1]))
        row = group.request.row
        mean, count = self._rows.pop(row, (0.0, 0))
        if len(group.finished) == 1 and count and len(self._logs) >= _ENOUGH:
            overall, within, between, _ = self._all()
            believed = _HISTORY_WEIGHT * count / within**2
            self._trust.push(overall + (mean - overall) * believed / (1 / between + believed), log)
        earlier = [math.log(max(1, tokens)) for tokens in group.finished[:-1]]
        if earlier:
            others = len(earlier)
            deviation = log - sum(earlier) / others
            # Its variance is that within the group times (1 + 1 / others).
            self._within.push(deviation * deviation * others / (others + 1))
        self._logs.push(log)
        self._overall = None
        self._rows[row] = (mean * count + log) / (count + 1), count + 1
        if len(self._rows) > _ROWS:
            self._rows.popitem(last=False)

    # What is expected

    @property
    def known(self) -> bool:
        """Whether the length of any response is known."""
        return len(self._logs) > 0

    @property
    def mean(self) -> float:
        """Of the logarithm of all lengths."""
        if not self._logs:
            return math.log(max(2, self.longest)) - 1.5
        return self._logs.mean

    @property
    def sd(self) -> float:
        """Of the logarithm of all lengths."""
        return 1.0 if len(self._logs) < _ENOUGH else max(_LEAST_SD, self._logs.sd)

    @property
    def sd_within(self) -> float:
        """Of the logarithm of the lengths of one group."""
        if len(self._within) < _ENOUGH:
            return self.sd * 0.7
        return min(self.sd, max(_LEAST_SD, math.sqrt(max(0.0, self._within.mean))))

    @property
    def alike(self) -> bool:
        """Whether siblings tell of each other."""
        return self.sd_within < _UNALIKE * self.sd

    def group(self, group: GroupState) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of the length of a response of this group."""
        overall, within, between, share = self._all()
        known, own = 1 / between, 1 / within**2
        total = known * overall
        if (history := self._history(group)) is not None:
            earlier = weight(known, _HISTORY_WEIGHT * own * history[1], share)
            known, total = known + earlier, total + earlier * history[0]
        for tokens in group.finished:
            known, total = known + own, total + own * math.log(max(1, tokens))
        mean = total / known
        longer = [math.log(request.tokens) for request in group.requests.values() if request.tokens > 1]
        for log in longer:
            if log > mean:
                known, total = known + own, total + own * truncated_mean(mean, within, log)
        return total / known, math.sqrt(within**2 + 1 / known)

    def _all(self) -> tuple[float, float, float, float]:
        if self._overall is None:
            within = self.sd_within
            between = max(_LEAST_SD**2, self.sd**2 - within**2)
            self._overall = self.mean, within, between, self._trust.share(between)
        return self._overall

    def told(self, row: int) -> bool:
        """Whether the length of any response to this row is known, of an earlier epoch as well."""
        return row in self._rows

    def _history(self, group: GroupState) -> tuple[float, float] | None:
        """Mean logarithm of what the row gave before this group, and of how many responses."""
        mean, count = self._rows.get(group.request.row, (0.0, 0))
        earlier = count - len(group.finished)
        if earlier <= 0:
            return None
        own = sum([math.log(max(1, tokens)) for tokens in group.finished])
        return (mean * count - own) / earlier, earlier

    def most(self, group: GroupState) -> float:
        """Tokens that the longest response of this group is expected to have, by the longest that is known of
        it, in earlier epochs as well where these tell anything; infinite where hazards of groups tell
        nothing."""
        if self._groups is None:
            return math.inf
        longest = _longest(group)
        if self._all()[3] and (history := self._history(group)) is not None:
            longest = max(longest, round(math.exp(history[0])))
        left = self._groups.remaining(longest)
        return math.inf if left is None else longest + left

    def total_of(self, request: RequestState, mean: float, sd: float, most: float = math.inf) -> float:
        """Expected length of a response, given what it has, and what `group` and `most` say of its group."""
        tokens = request.tokens
        # Never more by hazards, though more may remain: engines end with their longest response, not a mean
        # one.
        total = min(expected_total(mean, sd, tokens), most)
        if self._responses is not None and (left := self._responses.remaining(tokens)) is not None:
            total = min(total, tokens + left)
        return min(float(self.longest), max(tokens + 1.0, total))


def _longest(group: GroupState) -> int:
    """Tokens of its longest response, as far as known."""
    running = max([request.tokens for request in group.requests.values()], default=0)
    return max(running, max(group.finished, default=0))
