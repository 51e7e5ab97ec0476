"""What became of a job's groups and responses, counted since the job began.

Guarantees: every group that was dispatched is counted once: dispatched == accepted + refused +
sum(cancelled) + open;
every group that was accepted is trained, waits to be trained, or was discarded with a reason. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rljob_runtime.groups.filter import Reason


class GroupCounts(msgspec.Struct):
    """Kept by the rollouter, saved in checkpoints, shown in metrics, report and closing line."""

    dispatched: int = 0
    """Groups whose responses were begun."""
    accepted: int = 0
    """Groups that were completed and put into the queue."""
    open: int = 0
    """Groups under way."""
    cancelled: dict[str, int] = msgspec.field(default_factory=dict)
    """Groups ended before they were complete, by reason; their prompts are dispatched again."""
    discarded: dict[str, int] = msgspec.field(default_factory=dict)
    """Groups thrown away after they were accepted, some of them trained, by reason; their prompts are
    dispatched again."""
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    """Responses without a reward, which are not trained, by what went wrong: timeout, error, ..."""
    moved_requests: int = 0
    """Requests that lost their engine and went on elsewhere."""
    continued_requests: int = 0
    """Requests taken out of an engine with a part of their tokens, and resubmitted."""
    restarted_requests: int = 0
    """Requests taken out of an engine that begin anew, without the tokens that they had."""
    refused: int = 0
    """Groups that were completed and not trained, because all their rewards are equal or for their pass
    rate; their prompts are done."""
    refused_pass_rate: int = 0
    """Those of them that were refused for their pass rate."""
    equal_rewards: int = 0
    """Groups that were accepted although all their rewards are equal."""
    outside_pass_rate: int = 0
    """Groups that were accepted although their pass rate is none that the job trains."""
    responses: int = 0
    """Responses of accepted groups."""
    response_tokens: int = 0
    """Their tokens."""
    again: int = 0
    """Accepted groups whose prompts were aborted before, by over-sampling."""
    again_responses: int = 0
    """Responses of these groups."""
    again_tokens: int = 0
    """Their tokens."""
    rerouted_requests: int = 0
    """Requests taken out of an engine because routing moved them to another one."""
    fast_tokens: int = 0
    """Response tokens that engines of the fast pool generated."""
    heavy_tokens: int = 0
    """Response tokens that engines of the heavy pool generated."""
    dropped_tokens: int = 0
    """Those of them that requests had which began anew."""

    def dispatch(self) -> None:
        """A group is under way."""
        self.dispatched += 1
        self.open += 1

    def accept(
        self,
        lengths: Sequence[int] = (),
        equal_rewards: bool = False,
        again: bool = False,
        outside_pass_rate: bool = False,
    ) -> None:
        """A group under way is in the queue. `lengths`: tokens of its responses; `again`: whether its prompt
        was aborted before, by over-sampling."""
        self.open -= 1
        self.accepted += 1
        self.equal_rewards += equal_rewards
        self.outside_pass_rate += outside_pass_rate
        self.responses += len(lengths)
        self.response_tokens += sum(lengths)
        if again:
            self.again += 1
            self.again_responses += len(lengths)
            self.again_tokens += sum(lengths)

    def refuse(self, reason: Reason) -> None:
        """A group under way is refused."""
        self.open -= 1
        self.refused += 1
        self.refused_pass_rate += reason == "pass_rate"

    def cancel(self, reason: str, groups: int) -> None:
        """Groups under way were ended."""
        self.open -= groups
        _add(self.cancelled, reason, groups)

    def reject(self, reason: str) -> None:
        """A response has no reward."""
        _add(self.rejected, reason, 1)

    def went_back(self, kept: int, refused: int, reason: str, refused_pass_rate: int = 0) -> None:
        """The job went back to a checkpoint that holds `kept` groups: those that were trained by then, and
        those that waited; `refused` groups were refused by then, `refused_pass_rate` of them for their pass
        rate. Groups under way are cancelled, and so are
        groups that were refused after the checkpoint, for it does not know that they were; groups that were
        accepted after it are discarded. A checkpoint may hold a group that is not counted as accepted yet,
        because handing it to the queue had not ended: it is counted now."""
        _add(self.cancelled, reason, self.refused - refused)
        self.refused, self.refused_pass_rate = refused, refused_pass_rate
        # Groups that are trained or wait, by these counts.
        held = self.accepted - sum(self.discarded.values())
        unaccepted = max(0, kept - held)
        self.accepted += unaccepted
        _add(self.cancelled, reason, self.open - unaccepted)
        self.open = 0
        _add(self.discarded, reason, max(0, held - kept))

    def copy(self) -> "GroupCounts":
        """An independent copy."""
        return msgspec.structs.replace(
            self,
            cancelled=dict(self.cancelled),
            discarded=dict(self.discarded),
            rejected=dict(self.rejected),
        )

    def generated(self, pool: str, tokens: int) -> None:
        """An engine of this pool has generated so many tokens of a response."""
        if pool == "heavy":
            self.heavy_tokens += tokens
        else:
            self.fast_tokens += tokens

    def begin_anew(self, tokens: int) -> None:
        """A request begins anew, without these tokens."""
        self.restarted_requests += 1
        self.dropped_tokens += tokens

    @property
    def heavy_share(self) -> float:
        """Share of the heavy pool in all generated tokens, 0 to 1."""
        return self.heavy_tokens / max(1, self.fast_tokens + self.heavy_tokens)

    def metrics(self) -> dict[str, dict[str, int] | dict[str, float]]:
        """The counts as they stand in a line of metrics."""
        found: dict[str, dict[str, int] | dict[str, float]] = {
            "groups": {
                "dispatched": self.dispatched,
                "accepted": self.accepted,
                "open": self.open,
                "refused": self.refused,
                "refused_pass_rate": self.refused_pass_rate,
                "equal_rewards": self.equal_rewards,
                "outside_pass_rate": self.outside_pass_rate,
                "cancelled": sum(self.cancelled.values()),
                "discarded": sum(self.discarded.values()),
            },
            "requests": {
                "moved": self.moved_requests,
                "continued": self.continued_requests,
                "restarted": self.restarted_requests,
                "rerouted": self.rerouted_requests,
            },
            "generated": {
                "fast_tokens": self.fast_tokens,
                "heavy_tokens": self.heavy_tokens,
                "dropped_tokens": self.dropped_tokens,
                "heavy_share": self.heavy_share,
            },
            "cancelled": dict(self.cancelled),
            "discarded": dict(self.discarded),
            "rejected": dict(self.rejected),
        }
        if OVER_SAMPLING in self.cancelled:
            found["over_sampling"] = {"again": self.again, "length_bias": self.length_bias}
        return found

    @property
    def length_bias(self) -> float:
        """Mean length of the accepted responses whose groups over-sampling kept when they were first begun,
        divided by that of all accepted responses, those that were aborted and begun again among them: below 1
        short ones are favoured, which come first. Not a number where over-sampling kept none."""
        kept, tokens = self.responses - self.again_responses, self.response_tokens - self.again_tokens
        if not kept or not self.response_tokens:
            return math.nan
        return tokens * self.responses / (kept * self.response_tokens)


OVER_SAMPLING = "over-sampling"
"""The reason of cancelling a group of a surplus."""
_WHEN = {
    "job resumed": "when the job was resumed",
    "trainer restarted": "when the trainer was restarted",
    OVER_SAMPLING: "as the slowest of an over-sampled step",
}
"""Reasons of cancelling and discarding, as they stand in a sentence; any other stands in brackets."""


def in_words(counts: GroupCounts) -> str | None:
    """What was interrupted and is generated again, what began anew, and what is not trained, in a sentence
    each; None where nothing was."""
    again = [
        f"{_count(sum(reasons.values()), noun)} {verb} {_when(reasons)}"
        for reasons, noun, verb in (
            (counts.cancelled, "group", "interrupted"),
            (counts.discarded, "finished group", "discarded"),
        )
        if sum(reasons.values())
    ]
    sentences = []
    if again:
        sentences.append(f"No prompt is lost: {', '.join(again)}; their prompts are generated again.")
    if counts.restarted_requests:
        dropped = f"without the {_count(counts.dropped_tokens, 'token')} that they had"
        sentences.append(
            f"Begun anew on another engine: {_count(counts.restarted_requests, 'request')}, {dropped}."
        )
    for refused, why, such in (
        (counts.refused - counts.refused_pass_rate, "rewards are all equal", counts.equal_rewards),
        (counts.refused_pass_rate, "pass rate is outside the filter's", counts.outside_pass_rate),
    ):
        if refused:
            share = refused / (counts.refused + counts.accepted)
            sentences.append(
                f"Refused: {_count(refused, 'group')} whose {why}, {share:.0%} of the complete ones; "
                f"{such:,} such were kept."
            )
    if rejected := sum(counts.rejected.values()):
        sentences.append(
            f"Not trained: {_count(rejected, 'response')} without a reward ({_reasons(counts.rejected)})."
        )
    return " ".join(sentences) or None


def counts_in(row: Mapping[str, Any]) -> GroupCounts | None:
    """The counts in a line of metrics; None where it has none."""
    # Rows may come from any file: what does not fit is left out, and raises nothing.
    groups, requests = row.get("groups"), row.get("requests")
    if not isinstance(groups, Mapping) or not isinstance(requests, Mapping):
        return None
    fields = {name: row.get(name) or {} for name in ("cancelled", "discarded", "rejected")}
    states = ("dispatched", "accepted", "open", "refused")
    of_filters = ("refused_pass_rate", "equal_rewards", "outside_pass_rate")
    fields |= {name: groups.get(name, 0) for name in (*states, *of_filters)}
    kinds = ("moved", "continued", "restarted", "rerouted")
    fields |= {f"{name}_requests": requests.get(name, 0) for name in kinds}
    over_sampling = row.get("over_sampling")
    if isinstance(over_sampling, Mapping):
        fields["again"] = over_sampling.get("again", 0)
    generated = row.get("generated")
    if isinstance(generated, Mapping):
        names = ("fast_tokens", "heavy_tokens", "dropped_tokens")
        fields |= {name: generated.get(name, 0) for name in names}
    try:
        return msgspec.convert(fields, GroupCounts)
    except msgspec.ValidationError:
        return None


def _add(counts: dict[str, int], reason: str, number: int) -> None:
    total = counts.get(reason, 0) + number
    # A reason with a count of 0 is not listed.
    if total:
        counts[reason] = total
    else:
        counts.pop(reason, None)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _when(reasons: Mapping[str, int]) -> str:
    """ "when the job was resumed", with the counts where there are several reasons."""
    if len(reasons) == 1:
        reason = next(iter(reasons))
        return _WHEN.get(reason, f"({reason})")
    return " and ".join(
        f"{_WHEN.get(reason, reason)} ({number:,})" for reason, number in _most_frequent_first(reasons)
    )


def _reasons(reasons: Mapping[str, int]) -> str:
    """ "timeout", or "timeout 3, error 1" where there are several."""
    if len(reasons) == 1:
        return next(iter(reasons))
    return ", ".join(f"{reason} {number:,}" for reason, number in _most_frequent_first(reasons))


def _most_frequent_first(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
