"""`report.html`: one file that tells what a run did, without a server or a network.

Guarantees: self-contained (markup, style, drawings and a little script, nothing is fetched); its size does
not grow with the length of the run; an unfinished or crashed run has a report too, one of which nothing can
be read has none; the file is replaced whole.
"""

import datetime
import re
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from time import monotonic

from rljob_api import RLJob
from rljob_runtime.given_files import unfinished_name
from rljob_runtime.manifest.load import ManifestError, read
from rljob_runtime.run_folder import MANIFEST
from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.analyse.analysis import Analysis, analyse_run
from rljob_runtime.trace.forecast.measured_run import measured_run
from rljob_runtime.trace.forecast.sizing import propose
from rljob_runtime.trace.record.evaluation_log import (
    EVALUATION_SAMPLES_FILE,
    EvaluationLine,
    read_evaluations,
)
from rljob_runtime.trace.record.sample_log import SampleLine, read_samples
from rljob_runtime.trace.record.unsent_log import Unsent, read_unsent
from rljob_runtime.trace.report.advice import Advice, advise
from rljob_runtime.trace.report.document import document
from rljob_runtime.trace.report.evidence import evidence_of
from rljob_runtime.trace.report.markup import number, percent, seconds, tile
from rljob_runtime.trace.report.recorded import check_recorded
from rljob_runtime.trace.report.section_learning import column, learning, staleness, summary_numbers
from rljob_runtime.trace.report.section_lost import losses
from rljob_runtime.trace.report.section_routing import routing
from rljob_runtime.trace.report.section_says import says
from rljob_runtime.trace.report.section_start import starting
from rljob_runtime.trace.report.section_tail import long_tail, tail_sentence
from rljob_runtime.trace.report.section_time import time_spent
from rljob_runtime.trace.report.section_use import worker_use
from rljob_runtime.trace.report.sizing_advice import size_advice

REPORT_FILE = "report.html"
_SEARCH = 10.0
"""Seconds in which other pool sizes are tried, at most."""
_SEARCH_BEFORE = 40.0
"""Seconds after the report's begin at which that ends: a run that ends waits a minute for its report."""


def report_page(run_dir: Path) -> str:
    """The report of the run in `run_dir`. Raises `NothingRecorded` where there is nothing to tell."""
    try:
        job: RLJob | None = read(run_dir / MANIFEST).job
    except ManifestError:
        # The report then has no settings to name; its figures need none.
        job = None
    began = monotonic()
    analysis = analyse_run(run_dir)
    samples, evaluations, unsent = read_samples(run_dir), read_evaluations(run_dir), read_unsent(run_dir)
    check_recorded(run_dir, analysis, samples, (evaluations, unsent))
    left = _SEARCH_BEFORE - (monotonic() - began)
    sizes, remark = _sizes(run_dir, job, analysis, max(0.0, min(_SEARCH, left)))
    held_out = read_samples(run_dir, EVALUATION_SAMPLES_FILE).rows
    name = job.metadata.name if job else run_dir.name
    return render(analysis, job, name, sizes, remark, samples.rows, evaluations, held_out, unsent)


def write_report(run_dir: Path, file: Path | None = None) -> Path:
    """Write the report of the run in `run_dir` and return its path: `file`, or one in the run's folder.
    Raises `OSError` where it cannot be written, and `NothingRecorded` where there is nothing to write."""
    page = report_page(run_dir)
    path = file or run_dir / REPORT_FILE
    # By renaming: a browser that reloads sees the old page or the new one.
    whole = unfinished_name(path)
    try:
        whole.write_text(page, encoding="utf-8")
        whole.replace(path)
    except OSError as error:
        # On a disk that takes no writes nothing can be removed either, and nothing is there.
        with suppress(OSError):
            whole.unlink(missing_ok=True)
        # Where the disk is full, it has no name.
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def _sizes(run_dir: Path, job: RLJob | None, analysis: Analysis, seconds: float) -> tuple[Advice | None, str]:
    """What the simulator advises on pool sizes, and what is to be remarked about that; the search takes so
    many seconds at most."""
    if job is None:
        return None, ""
    try:
        measured = measured_run(run_dir, job.spec, analysis)
        found = None if measured is None else propose(job.spec, measured, seconds)
        return size_advice(found, job.spec, run_dir), ""
    except Exception as error:  # noqa: BLE001 - a report of what was measured needs no simulator; it says so
        return None, f"Pool sizes could not be simulated ({type(error).__name__}: {error})."


def render(
    analysis: Analysis,
    job: RLJob | None,
    name: str,
    sizes: Advice | None = None,
    remark: str = "",
    samples: Sequence[SampleLine] = (),
    evaluations: Sequence[EvaluationLine] = (),
    held_out: Sequence[SampleLine] = (),
    unsent: Sequence[Unsent] = (),
) -> str:
    """The page as HTML. `job`: the run's settings, where they are known; `name`: its heading; `sizes`: advice
    on pool sizes, and a `remark` about it; `samples`: the responses that are kept as text; `evaluations`: in
    order of steps; `held_out`: what is kept of their responses; `unsent`: what loggers did not get."""
    notes = {
        odd.step: f": took {odd.seconds / max(odd.median, 1e-9):.1f} x as long as its neighbours"
        for odd in analysis.anomalies
    }
    advice = advise(evidence_of(analysis, job)) + ([sizes] if sizes is not None else [])
    sections = [
        ("help", "What would help", _advice(advice, analysis) + _soft(remark)),
        ("learn", "Did it learn?", learning(analysis, evaluations)),
        (
            "says",
            "What the model says",
            says(samples, job.spec.training.profiling.samples_per_step if job else None, held_out),
        ),
        ("time", "Where did the time go?", time_spent(analysis, notes)),
        (
            "tail",
            "Which requests were the long tail?",
            f"<p>{tail_sentence(analysis)}</p>" + long_tail(analysis),
        ),
        ("routing", "How were responses placed and moved?", routing(analysis)),
        ("use", "What did each worker use?", worker_use(analysis)),
        ("start", "Where did the time of the start go?", starting(analysis)),
        ("stale", "How old were the samples?", staleness(analysis)),
        ("lost", "Was anything lost?", losses(analysis, unsent)),
    ]
    # A run that did not record its start has nothing to show of it.
    sections = [each for each in sections if each[2]]
    links = "".join(f'<a href="#{key}">{escape(title)}</a>' for key, title, _ in sections)
    body = "".join(f'<h2 id="{key}">{escape(title)}</h2>{content}' for key, title, content in sections)
    return document(
        f"{name} – rljob report",
        f"<h1>{escape(name)}</h1>{_subtitle(analysis, job)}<nav>{links}</nav>"
        f'<div class="tiles">{_tiles(analysis)}</div>{_remarks(analysis, job)}{body}',
    )


def _subtitle(analysis: Analysis, job: RLJob | None) -> str:
    parts = []
    if analysis.windows:
        began = datetime.datetime.fromtimestamp(analysis.windows[0].start, datetime.UTC)
        parts.append(f"began {began:%Y-%m-%d %H:%M} UTC")
    if job is not None:
        pools, training = job.spec.pools, job.spec.training
        engine = "vllm" if training.rollout.engine.vllm is not None else "torch"
        parts += [
            f"accelerator {job.spec.accelerator}",
            f"trainer {pools.trainer.replicas}"
            f" · fast {_workers(analysis, 'fast', pools.fast_rollout.replicas)}"
            f" · heavy {_workers(analysis, 'heavy', pools.heavy_rollout.replicas)}",
            f"engine {engine}",
            f"bound {training.async_.max_staleness:g}",
        ]
    return f'<p class="soft">{escape("   ·   ".join(parts))}</p>'


def _workers(analysis: Analysis, pool: str, asked: int) -> str:
    """How many workers the manifest asks for, and where the pool was scaled or lost some for good, how many
    it has at the end."""
    use = next((each for each in analysis.pools if each.pool == pool), None)
    # A worker that has recorded nothing may be there all the same.
    other = use is not None and (len(use.workers) > asked or any(worker.left for worker in use.workers))
    return f"{asked} → {use.at_end}" if use is not None and other and use.at_end != asked else f"{asked}"


def _tiles(analysis: Analysis) -> str:
    tiles = []
    reward = summary_numbers(analysis)
    if reward:
        rise = reward["last"] - reward["first"]
        # Less would not be seen in the two decimals that are shown.
        style = "good" if rise > 0.01 else "bad" if rise < -0.01 else ""
        tiles.append(
            tile(
                f"{reward['first']:.2f} → {reward['last']:.2f}",
                "mean reward, first and last tenth of the steps",
                style,
            )
        )
    if analysis.windows:
        total, kept, gone = analysis.seconds, len(analysis.windows), analysis.metrics.gone
        # Of steps whose rows are gone it is not known how long they took.
        within = "" if gone else f" in {seconds(total)}"
        tiles.append(tile(f"{kept + gone:,}", f"steps{within}, {seconds(total / kept)} each"))
    tokens = sum(value for value in column(analysis, "response_tokens") if value is not None)
    if tokens and analysis.seconds:
        tiles.append(tile(number(tokens / analysis.seconds), "response tokens trained per second"))
    tiles.extend(
        tile(percent(1 - pool.overall["idle"]), f"of the time of {pool.pool} is busy")
        for pool in analysis.pools
        if pool.role != "other"
    )
    ages = [value for value in column(analysis, "staleness_mean") if value is not None]
    oldest = [value for value in column(analysis, "staleness_max") if value is not None]
    if ages:
        tiles.append(
            tile(
                f"{sum(ages) / len(ages):.2f}", f"versions old on average, {max(oldest, default=0):g} at most"
            )
        )
    return "".join(tiles)


def _remarks(analysis: Analysis, job: RLJob | None) -> str:
    """What a reader must know to trust the numbers."""
    remarks = []
    if (unfinished := _unfinished(analysis, job)) is not None:
        remarks.append(unfinished)
    if not analysis.metrics.rows:
        remarks.append("No step has been recorded: metrics.jsonl is missing or empty.")
    if gone := analysis.metrics.gone:
        kept = len(analysis.metrics.rows)
        remarks.append(
            f"Rows of {kept:,} of {kept + gone:,} steps are there: metrics.jsonl keeps the newest steps all "
            "and of older ones ever fewer, to stay small. Curves, and means over steps, are of these."
        )
    if not analysis.event_uses:
        remarks.append("No events were recorded: training.profiling.events is false, or no worker started.")
    if analysis.recorded_from and analysis.event_uses:
        remarks.append(
            f"Events are there from step {step_number(analysis.recorded_from)} on: those before took more "
            "room than the job gives them (training.profiling.maxEventsMiB). What is made of events is of "
            "these steps; curves and samples are of all."
        )
    if analysis.interruptions:
        count = len(analysis.interruptions)
        steps = ", ".join(str(step_number(start.step)) for start in analysis.interruptions[:10])
        remarks.append(
            f"Training was interrupted {'once' if count == 1 else f'{count} times'} and went on at step "
            f"{steps}{', …' if count > 10 else ''} (the last section says why). The "
            f"{seconds(analysis.lost_seconds)} that this cost, and {analysis.superseded:,} events of steps "
            "that were trained again, are not part of what follows."
        )
    if analysis.left_out:
        remarks.append(f"{analysis.left_out}.")
    if unreadable := analysis.metrics.unreadable:
        lines = (
            "1 line of metrics.jsonl was"
            if unreadable == 1
            else f"{unreadable:,} lines of metrics.jsonl were"
        )
        remarks.append(f"{lines} cut off or damaged and left out.")
    return "".join(_soft(remark) for remark in remarks)


def _unfinished(analysis: Analysis, job: RLJob | None) -> str | None:
    """That steps are still to be trained, where the manifest says of how many; None where none are."""
    total = job.spec.training.schedule.total_steps if job is not None else None
    rows = analysis.metrics.rows
    if total is None or not rows or (trained := step_number(rows[-1]["step"])) >= total:
        return None
    return f"{trained:,} of {total:,} steps are trained: training goes on, or ended before it was done."


def _soft(remark: str) -> str:
    return f'<p class="soft">{escape(remark)}</p>' if remark else ""


def _advice(found: list[Advice], analysis: Analysis) -> str:
    if not analysis.event_uses:
        return "<p>Without events there is nothing to go by.</p>"
    if not found:
        return "<p>No setting stands out: no pool waits much for another, and no overhead is large.</p>"
    items = "".join(
        f"<li><code>spec.{escape(advice.setting)}</code> {_marked(advice.change)}."
        f'<p class="soft">Because {escape(advice.reason)}.</p></li>'
        for advice in found
    )
    return f'<ul class="advice">{items}</ul>'


def _marked(text: str) -> str:
    """Text whose commands, between backticks, are set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
