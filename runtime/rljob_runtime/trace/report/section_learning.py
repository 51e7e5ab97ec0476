"""The report on learning and on the age of samples: curves of the metrics.

Pure: an analysis in, markup out.
"""

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.record.evaluation_log import EvaluationLine, failing
from rljob_runtime.trace.record.start_log import Start
from rljob_runtime.trace.report.charts import Mark, Series, bar_chart, line_chart, step_axis
from rljob_runtime.trace.report.markup import figure, grid
from rljob_runtime.trace.report.section_rewards import named_values, reward_values


def column(analysis: Analysis, name: str) -> list[float | None]:
    """A metric of every step; None where it is missing or no number."""
    values = [row.get(name) for row in analysis.metrics.rows]
    return [float(value) if isinstance(value, (int, float)) else None for value in values]


def learning(analysis: Analysis, evaluations: Sequence[EvaluationLine] = ()) -> str:
    """The section "Did it learn?": curves of the metrics and of the evaluations, with a mark at each
    interruption, and what failed in the newest evaluation."""
    steps = step_axis(row["step"] for row in analysis.metrics.rows)
    restarts = [_mark(start) for start in analysis.interruptions]

    def chart(title: str, *names: tuple[str, str], unit: str = "", zero: bool = False) -> str:
        columns = [(label, column(analysis, name)) for name, label in names]
        lines = [
            Series(label, values, index)
            for index, (label, values) in enumerate(columns)
            if any(value is not None for value in values)
        ]
        return figure(title, line_chart(steps, lines, unit=unit, zero=zero, marks=restarts) if lines else "")

    # Of the newest one: earlier ones may have failed for what is mended since.
    told = "".join(f"<p>{escape(words)}.</p>" for words in (failing(evaluations[-1]) if evaluations else ()))
    return told + grid(
        [
            *_evaluated(evaluations, restarts),
            chart("Reward", ("reward_mean", "mean"), ("reward_std", "standard deviation")),
            chart(
                "Rewards of a step",
                ("reward_min", "lowest"), ("reward_p10", "10 %"), ("reward_median", "median"),
                ("reward_p90", "90 %"), ("reward_max", "highest"),
            ),
            *reward_values(analysis.metrics.rows, restarts),
            chart("Groups that teach nothing: all rewards equal", ("equal_groups", "share"), zero=True),
            chart("Loss", ("loss", "loss"), ("policy_loss", "policy loss")),
            chart("KL to the reference", ("kl", "kl")),
            chart("KL to the teacher", ("teacher_kl", "kl"), zero=True),
            chart("Entropy", ("entropy", "entropy")),
            chart("Gradient norm", ("grad_norm", "norm"), zero=True),
            chart("Learning rate", ("learning_rate", "rate"), zero=True),
            chart("Clipped tokens", ("clip_fraction", "share"), zero=True),
            chart(
                "Response length",
                ("response_length_mean", "mean"), ("response_length_max", "longest"),
                unit="tokens", zero=True,
            ),
            chart(
                "Log-probabilities: engine against trainer, same weights",
                ("parity_max", "largest difference"), ("parity_mean", "mean"), zero=True,
            ),
            chart("Samples without a reward", ("failed", "samples"), zero=True),
        ]
    )  # fmt: skip


def _mark(start: Start) -> Mark:
    number = step_number(start.step)
    return Mark(number, f"{start.cause}: went on at step {number}")


def _evaluated(evaluations: Sequence[EvaluationLine], marks: list[Mark]) -> list[str]:
    """Mean reward, pass@k and parts of the reward of the prompts that are not trained; nothing where none
    were evaluated."""
    if not evaluations:
        return []
    # Steps done, which is the number of the step before.
    steps = [float(line.step) for line in evaluations]
    scores = {name: [line.sets.get(name) for line in evaluations] for name in evaluations[-1].sets}
    means = [
        Series(name, [None if score is None else score.mean for score in found], index)
        for index, (name, found) in enumerate(scores.items())
    ]
    passes = [
        (f"{name} pass@{k}", [None if score is None else score.pass_at.get(k) for score in found])
        for name, found in scores.items()
        for k in sorted({1, max(evaluations[-1].sets[name].pass_at)})
    ]
    lines = [Series(label, values, index) for index, (label, values) in enumerate(passes)]
    return [
        figure(
            "Evaluation: mean reward", line_chart(steps, means, marks=marks), "prompts that are not trained"
        ),
        figure("Evaluation: pass@k", line_chart(steps, lines, zero=True, marks=marks)),
        *(
            part
            for name, found in scores.items()
            for part in named_values(
                "Evaluation: parts of the reward",
                f"of {name}, means",
                steps,
                [None if score is None else score.parts for score in found],
                marks,
            )
        ),
    ]


def staleness(analysis: Analysis) -> str:
    """The section "How old were the samples?": ages when trained, over the run and over time."""
    ages: Counter[int] = Counter()
    for row in analysis.metrics.rows:
        histogram = row.get("staleness_histogram")
        if isinstance(histogram, dict):
            for age, count in histogram.items():
                # Keys of JSON are text.
                if str(age).lstrip("-").isdigit() and isinstance(count, (int, float)):
                    ages[int(age)] += int(count)
    total = sum(ages.values())
    bars = [(str(age), ages[age] / total * 100) for age in sorted(ages)] if total else []
    steps = step_axis(row["step"] for row in analysis.metrics.rows)
    lines = [
        Series("mean", column(analysis, "staleness_mean"), 0),
        Series("max", column(analysis, "staleness_max"), 2),
    ]
    mixed = [None if value is None else value * 100 for value in column(analysis, "mixed_share")]
    return grid(
        [
            figure("Age when trained", bar_chart(bars, "weight versions"), "share of all responses"),
            figure("Age over time", line_chart(steps, lines, unit="versions", zero=True)),
            figure(
                "Samples in the queue",
                line_chart(steps, [Series("samples", column(analysis, "queue_depth"))], zero=True),
            ),
            figure(
                "Responses of more than one version",
                line_chart(steps, [Series("share", mixed)], unit="%", zero=True),
            ),
            _masked(analysis, steps),
        ]
    )


_MASKED = {"tokens": "all", "shortest_quarter": "shortest quarter", "longest_quarter": "longest quarter"}
"""What is drawn of the metric `masked`, and how it is called."""


def _masked(analysis: Analysis, steps: list[float]) -> str:
    """The share of tokens that were too old to be trained, by the length of their responses; nothing where no
    step masks."""
    rows = [row.get("masked") for row in analysis.metrics.rows]
    shares = [row if isinstance(row, dict) else {} for row in rows]
    if not any(shares):
        return ""
    lines = [
        Series(
            label,
            [value * 100 if isinstance(value := row.get(name), int | float) else None for row in shares],
            index,
        )
        for index, (name, label) in enumerate(_MASKED.items())
    ]
    return figure(
        "Tokens too old to be trained",
        line_chart(steps, lines, unit="%", zero=True),
        "share of the tokens of all responses, of the shortest and of the longest quarter of them",
    )


def summary_numbers(analysis: Analysis) -> dict[str, float]:
    """Reward at the beginning and at the end: means over the first and last tenth, 5 steps at least."""
    rewards = [
        value for value in column(analysis, "reward_mean") if value is not None and math.isfinite(value)
    ]
    if not rewards:
        return {}
    width = max(min(5, len(rewards)), len(rewards) // 10)
    return {"first": sum(rewards[:width]) / width, "last": sum(rewards[-width:]) / width}
