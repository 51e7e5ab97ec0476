"""The commands of `rljob` that look at a run: its folder, whether it runs or has ended."""

import argparse
import shutil
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from rljob_runtime.cli.endings import fail, refuse
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.run_folder import Found, find, holds_run


def _refusal(folder: Path) -> str | None:
    """Why nothing can be told of a run in a folder; None where one was started there."""
    if not holds_run(folder):
        return f"{folder} holds no run; give the folder that `rljob run` wrote"
    if find(folder) in (Found.FINISHED, Found.UNFINISHED):
        return None
    from rljob_runtime.data.length_trace import LENGTHS_FILE
    from rljob_runtime.trace.record.event_log import EVENTS_FOLDER
    from rljob_runtime.trace.record.metrics_log import METRICS_FILE
    from rljob_runtime.trace.record.sample_log import SAMPLES_FILE

    # Somebody may have copied what a run has recorded, and no more.
    records = (EVENTS_FOLDER, METRICS_FILE, LENGTHS_FILE, SAMPLES_FILE)
    if any((folder / name).exists() for name in records):
        return None
    return f"{folder} holds a manifest and no run of it; give the folder that `rljob run` wrote"


def _of_run(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command, which refuses a folder without a run, and names what cannot be read or written."""

    @wraps(command)
    def checked(options: argparse.Namespace) -> int:
        try:
            if (why := _refusal(options.folder)) is not None:
                return refuse(f"rljob: {why}.")
            return command(options)
        except OSError as error:
            # Without a name it is the output: `command.main` tells of it.
            if error.filename is None:
                raise
            return fail(f"rljob: {error.filename}: {error.strerror}.")

    return checked


@_of_run
def report(options: argparse.Namespace) -> int:
    """Write the run's HTML report, and print its path; or print the report."""
    from rljob_runtime.trace.report.page import report_page, write_report
    from rljob_runtime.trace.report.page_file import NoPage, try_page
    from rljob_runtime.trace.report.recorded import NothingRecorded

    try:
        if str(options.output) == "-":
            print(report_page(options.folder))
            return ExitCode.DONE
        if options.output is not None:
            try_page(options.output, "--output", by_renaming=True)
        print(write_report(options.folder, options.output))
    except NothingRecorded as error:
        return refuse(f"rljob: {error}")
    except NoPage as error:
        return refuse(f"rljob: {error}.")
    return ExitCode.DONE


@_of_run
def fit(options: argparse.Namespace) -> int:
    """Print what engines and training cost, as the run shows it."""
    from rljob_runtime.trace.analyse.event_files import Tally
    from rljob_runtime.trace.forecast.run_fit import NothingToFit, fit_run

    tally = Tally()
    try:
        print(fit_run(options.folder, tally), end="")
    except NothingToFit as error:
        return refuse(f"rljob: {error}")
    if tally.unreadable:
        print(f"rljob: {tally.left_out}.", file=sys.stderr)
    return ExitCode.DONE


@_of_run
def responses(options: argparse.Namespace) -> int:
    """Print where the longest responses of a step ran."""
    from rljob_runtime.trace.report.responses_text import NoSuchStep, responses_text

    try:
        print(responses_text(options.folder, options.step))
    except NoSuchStep as error:
        return refuse(f"rljob: {error}")
    return ExitCode.DONE


@_of_run
def export_trace(options: argparse.Namespace) -> int:
    """Write the run's events for other tools."""
    from rljob_runtime.trace.export.export import FILES, NoFile, NothingToExport, print_trace
    from rljob_runtime.trace.export.export import export_trace as export_events

    file: Path = options.output or options.folder / FILES[options.format]
    printed = str(file) == "-"
    try:
        if printed:
            count, tally = print_trace(options.folder, sys.stdout.buffer, options.format)
        else:
            count, tally = export_events(options.folder, file, options.format)
    except (NothingToExport, NoFile) as error:
        return refuse(f"rljob: {error}")
    if tally.unreadable:
        print(f"rljob: {tally.left_out}.", file=sys.stderr)
    if options.format == "otlp":
        told = f"{count} spans; each line is a request for an OTLP receiver's /v1/traces"
    else:
        told = f"{count} records; open it in https://ui.perfetto.dev or chrome://tracing"
    print(f"{'<stdout>' if printed else file}: {told}", file=sys.stderr if printed else sys.stdout)
    return ExitCode.DONE


@_of_run
def samples(options: argparse.Namespace) -> int:
    """Print what the model said."""
    from rljob_runtime.trace.report.samples_text import NoSamples, Wanted, samples_text

    wanted = Wanted(
        options.step, options.order, options.prompt, options.row, options.count, options.json,
        options.evaluation,
    )  # fmt: skip
    try:
        printed = samples_text(options.folder, wanted, min(120, shutil.get_terminal_size((100, 24)).columns))
    except NoSamples as error:
        return refuse(f"rljob: {error}")
    print(printed.text)
    if printed.left_out:
        print(f"rljob: {printed.left_out}.", file=sys.stderr)
    return ExitCode.DONE


@_of_run
def export(options: argparse.Namespace) -> int:
    """Write a checkpoint as a Hugging Face model."""
    if options.destination.exists():
        return refuse(f"rljob: {options.destination} exists already; name a folder that does not.")
    from rljob_runtime.driver.export import ExportRefused, export_adapter
    from rljob_runtime.driver.export import export as export_model
    from rljob_runtime.trainer.checkpoint import CheckpointError

    try:
        write = export_adapter if options.adapter else export_model
        step = write(options.folder, options.destination, options.step)
    except ExportRefused as error:
        return refuse(f"rljob: {error}.")
    except CheckpointError as error:
        return fail(f"rljob: {error}.")
    print(f"{options.destination}: the {'adapter' if options.adapter else 'model'} of step {step}")
    return ExitCode.DONE
