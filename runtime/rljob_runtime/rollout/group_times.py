"""What is recorded of a group's time besides its stages; pure. In seconds, to the microsecond."""

from collections.abc import Sequence

from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import Score
from rljob_runtime.samples import Timing


def sibling_spread(responses: Sequence[Response]) -> float:
    """From the first of a group's responses that was complete to the last."""
    ends = [response.began + response.seconds for response in responses]
    return round(max(ends) - min(ends), 6)


def reward_times(scores: Sequence[Score]) -> dict[str, float | list[float]]:
    """`waiting` for a worker and `running` in the function, of the response whose score came last: on the
    others nothing waited. `waited` and `ran`: the same of each response, in their order. Nothing where it is
    known of none."""
    last = max(scores, key=lambda score: score.waited + score.seconds)
    if last.waited + last.seconds == 0:
        return {}
    return {
        "waiting": round(last.waited, 6),
        "running": round(last.seconds, 6),
        "waited": [round(score.waited, 6) for score in scores],
        "ran": [round(score.seconds, 6) for score in scores],
    }


def teacher_time(scores: Sequence[Score]) -> dict[str, float]:
    """`teacher`: seconds until a served teacher had answered for all responses, beside their rewards. Nothing
    where there is none."""
    last = max(score.teacher_seconds for score in scores)
    return {"teacher": round(last, 6)} if last else {}


def phases_of(timing: Timing) -> dict[str, float]:
    """Where the time of a stay on an engine went, as the fields of `Timing`, without those that are 0."""
    found = {name: round(getattr(timing, name), 6) for name in timing.__struct_fields__}
    return {name: value for name, value in found.items() if value > 0}
