"""`rljob simulate`: a job under every routing policy, before anything runs, and the pool sizes it would need.

Guarantees: starts nothing, and writes nothing but the page that it is asked for; what is assumed and not
known is printed with the result, and so is what of the job is not simulated; what cannot be simulated raises
`ManifestError` or, for recorded lengths, `LengthTraceError`, which name the file.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from rljob_api.errors import Problem
from rljob_runtime.data.length_trace import LengthTrace, LengthTraceError, read_length_trace
from rljob_runtime.given_files import called
from rljob_runtime.manifest.assumptions import read_assumptions
from rljob_runtime.manifest.checks import fingerprint
from rljob_runtime.manifest.load import Finding, Manifest, ManifestError, find, read
from rljob_runtime.manifest.source import YamlSource
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.cluster import CacheTooSmall
from rljob_runtime.simulate.compare import Draw, best_sizes, compare, own_policy, policies
from rljob_runtime.simulate.site import Site, Sizes
from rljob_runtime.trace.forecast import left_out, text
from rljob_runtime.trace.forecast.trace_remarks import not_compared, remarks
from rljob_runtime.trace.forecast.workloads import drawn, recorded, refusal, small_cache, too_long
from rljob_runtime.trace.report.page_file import try_page
from rljob_runtime.trace.report.simulation_page import simulation_page

_REQUESTS = 40_000
"""Responses of one simulation, unless the steps are given: some ten seconds for each policy and seed."""
_STEPS = (4, 12)
"""Fewest and most steps that are simulated, unless they are given."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    manifest: Path
    assumptions: Path | None = None
    trace: Path | None = None
    """Recorded lengths."""
    steps: int | None = None
    seeds: int = 3
    size: int | None = None
    """Accelerators for which the best pool sizes are wanted."""
    page: Path | None = None
    """Where a page with the time lines of all policies is written; not with `size`."""


def forecast(options: Options) -> str:
    """What `rljob simulate` prints. Raises `ManifestError`, `LengthTraceError`, `NoPage`, and `OSError` where
    the page cannot be written."""
    manifest = read(options.manifest)
    if options.page is not None:
        try_page(options.page, "--html")
    assumptions, source = (
        (Assumptions(), None) if options.assumptions is None else read_assumptions(options.assumptions)
    )
    site = Site(manifest.job.spec, assumptions, options.steps or _steps(manifest))
    trace, doubt = _trace(options, manifest)
    if options.trace is None and (problem := too_long(site)) is not None:
        raise _wrong(options, source, problem)
    try:
        if options.size is not None:
            return _sizes(site, trace, options, doubt)
        return _comparison(manifest, site, trace, options, doubt)
    except CacheTooSmall as error:
        raise _wrong(options, source, small_cache(error, assumptions)) from error
    except ValueError as error:
        # What a distribution or an engine cannot be is known where it is built, and not by a field alone.
        file = called(options.assumptions or options.manifest)
        raise ManifestError([Finding(file, 1, Problem((), str(error)))]) from error


def _wrong(options: Options, source: YamlSource | None, problem: Problem) -> ManifestError:
    """What is wrong with the assumptions: in their file, or with the defaults for this manifest."""
    if options.assumptions is None or source is None:
        why = f"the assumed {'.'.join(map(str, problem.path))} does not fit this job: {problem.message}"
        return ManifestError([Finding(called(options.manifest), 1, Problem((), why))])
    return ManifestError([find(called(options.assumptions), source, problem)])


def _steps(manifest: Manifest) -> int:
    training = manifest.job.spec.training
    each = training.groups_per_step * training.rollout.samples_per_prompt
    fewest, most = _STEPS
    wanted = training.schedule.total_steps or most
    return min(wanted, max(fewest, min(most, _REQUESTS // each)))


def _trace(options: Options, manifest: Manifest) -> tuple[LengthTrace | None, str]:
    """The recorded lengths, None where there are none; and what is told where it is not known whether they
    are of the job's prompts."""
    if options.trace is None:
        return None, ""
    trace = read_length_trace(options.trace)
    data = fingerprint(manifest.job, manifest.folder)
    if (why := refusal(trace, manifest.job.spec, data)) is not None:
        raise LengthTraceError(f"{options.trace} {why}")
    return trace, not_compared(trace, data)


def _draw(trace: LengthTrace | None) -> Draw:
    return drawn if trace is None else recorded(trace)


def _comparison(
    manifest: Manifest, site: Site, trace: LengthTrace | None, options: Options, doubt: str
) -> str:
    spec = site.spec
    seeds = range(options.seeds)
    found = compare(site, _draw(trace), seeds, policies(spec))
    own = own_policy(spec)
    shapes = site.shapes()
    shown = next(each for each in found if each.policy == own)
    drawing = text.timeline(
        shown.outcomes[0], [shape.pool for shape in shapes], [shape.limit for shape in shapes]
    )
    name, heading = manifest.job.metadata.name, _heading(site, options)
    if options.page is not None:
        page = simulation_page(
            name,
            heading,
            _limits(site, trace, options, doubt),
            _assumed(site, trace, options),
            found,
            own,
            shapes,
        )
        options.page.write_text(page, encoding="utf-8")
    return _paragraphs(
        f"{name}: {heading}",
        f"{text.comparison(found, own)}\n* the job's. {text.SECONDS_OF}",
        *_limits(site, trace, options, doubt),
        f"Requests of each engine under {shown.policy}, first seed:\n{drawing}",
        _assumed(site, trace, options),
    )


def _sizes(site: Site, trace: LengthTrace | None, options: Options, doubt: str) -> str:
    assert options.size is not None
    found = best_sizes(site, _draw(trace), range(options.seeds), options.size)
    now = Sizes.of(site.spec)
    own = (
        f"The job has {now.trainer} trainer, {now.fast} fast and {now.heavy} heavy workers: "
        f"{now.accelerators(site.spec)} accelerators."
    )
    return _paragraphs(
        text.sizes(found, options.size, now),
        own,
        *_limits(site, trace, options, doubt),
        _assumed(site, trace, options),
    )


def _paragraphs(*texts: str) -> str:
    """Those that say anything, with an empty line between them."""
    return "\n\n".join(filter(None, texts))


def _limits(site: Site, trace: LengthTrace | None, options: Options, doubt: str) -> list[str]:
    """What of the job, and of its recorded lengths, is not simulated: a paragraph each."""
    found = [left_out.sentence(left_out.left_out(site.spec, recorded=trace is not None))]
    training = site.spec.training
    longest = training.rollout.max_response_tokens
    if trace is not None:
        found.append(remarks(trace, site.steps, training.groups_per_step, options.seeds, longest))
    return list(filter(None, [*found, doubt]))


def _heading(site: Site, options: Options) -> str:
    spec, sizes = site.spec, Sizes.of(site.spec)
    training = spec.training
    step = f"{text.counted(training.groups_per_step, 'prompt')} of "
    step += f"{text.counted(training.rollout.samples_per_prompt, 'response')} a step"
    return (
        f"{sizes.trainer} trainer, {sizes.fast} fast and {sizes.heavy} heavy workers; {step}, bound "
        f"{training.async_.max_staleness:g}; {text.counted(site.steps, 'step')}, "
        f"{text.counted(options.seeds, 'seed')}"
    )


def _assumed(site: Site, trace: LengthTrace | None, options: Options) -> str:
    """What the figures rest on."""
    assumed = site.assumptions
    trainer, job = assumed.trainer, site.job()
    lengths = (
        f"lengths recorded in {options.trace}{_without(trace)}"
        if trace is not None
        else f"lengths lognormal with a mean of {site.lengths().mean:,.0f} tokens, log-deviation "
        f"{assumed.lengths.between_prompts:g} between prompts and {assumed.lengths.within_prompt:g} within"
    )
    where = (
        f"from {called(options.assumptions)}"
        if options.assumptions is not None
        else "defaults, of an 8 B model on an H200 for each engine, and measured nowhere"
    )
    trainer_does = (
        "the trainer waiting for all of it"
        if job.trainer_sends
        else "the trainer going on once it is published"
    )
    return (
        f"Assumed ({where}): {lengths}; a decode step {_decode_steps(site, options)}; "
        f"training {trainer.seconds_per_step:.3g} s + {1e6 * trainer.seconds_per_token:.3g} µs a "
        f"token on one accelerator; a version of the weights {job.publish_seconds:.3g} s to publish, "
        f"{job.delivery_seconds:.3g} s until engines begin to load it and {job.sync_seconds:.3g} s to load, "
        f"{trainer_does}. --assumptions FILE changes them; `rljob trace fit RUN` prints what a run measured."
    )


def _decode_steps(site: Site, options: Options) -> str:
    """What a decode step costs, on engines of the pools that are simulated."""
    own = Sizes.of(site.spec)
    counts = (own.fast, own.heavy) if options.size is None else (1, 1)
    shapes = replace(site, spec=Sizes(1, 1, 1).applied(site.spec)).shapes()
    costs = {
        shape.pool: text.decode_step(shape.cost) for shape, count in zip(shapes, counts, strict=True) if count
    }
    if len(set(costs.values())) == 1:
        return next(iter(costs.values()))
    return ", ".join(f"{cost} on a {pool} engine" for pool, cost in costs.items())


def _without(trace: LengthTrace) -> str:
    """What of a trace is not simulated."""
    removed = trace.header.removed
    found = f", without the {removed:,} groups that were taken out of it" if removed else ""
    return found + (f", without {trace.left_out}" if trace.unreadable else "")
