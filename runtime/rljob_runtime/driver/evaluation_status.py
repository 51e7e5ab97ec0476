"""What a job's status tells of an evaluation. Pure."""

from rljob_api.status import EvaluatedSet, EvaluationStatus
from rljob_runtime.evaluation.scores import SetScore
from rljob_runtime.trace.record.evaluation_log import EvaluationLine


def evaluation_status(line: EvaluationLine) -> EvaluationStatus:
    """`status.training.evaluation`."""
    return EvaluationStatus(
        step=line.step,
        version=line.version,
        sets=[_status_of(name, score) for name, score in line.sets.items()],
        summary="/".join("-" if score.mean is None else f"{score.mean:.3g}" for score in line.sets.values()),
    )


def _status_of(name: str, score: SetScore) -> EvaluatedSet:
    largest = max(score.pass_at)
    return EvaluatedSet(
        name=name,
        mean=None if score.mean is None else round(score.mean, 6),
        pass_at_1=round(score.pass_at[1], 6),
        pass_at_k=round(score.pass_at[largest], 6) if largest > 1 else None,
    )
