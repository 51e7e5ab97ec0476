"""The commands of `rljob` that take a manifest.

Guarantees: fields of a manifest that are wrong, and a folder that is refused, are told before anything is
started. The rest of the check, and the measuring of the machine, take place while Ray starts (`checking.py`),
and workers on it import what they will need: where something is found Ray is ended, and nothing is left of
it. The run's folder is made after that; what is in it stays as it is until the job begins.
"""

import argparse
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_runtime.cli.checking import Asked, Check, CheckDied, checking
from rljob_runtime.cli.endings import ended_by_signals, ended_with_ray, fail, refuse
from rljob_runtime.cli.extensions import ManifestCommand, check_parts, to_install
from rljob_runtime.cli.verdict import Verdict
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.given_files import called, no_place
from rljob_runtime.manifest.load import Finding, Manifest, ManifestError, read, render
from rljob_runtime.manifest.preflight import free_memory
from rljob_runtime.run_folder import (
    INITIAL_MODEL,
    Begin,
    Decision,
    FolderFailed,
    FolderRefused,
    RunOptions,
    held,
    look,
)
from rljob_runtime.site.large_imports import large_imports
from rljob_runtime.site.machine import started_machine
from rljob_runtime.site.own_start import OwnStart, created, of_command
from rljob_runtime.site.scratch import sweep
from rljob_runtime.weights.shm import SHARED_MEMORY


def run(options: argparse.Namespace) -> int:
    """Run the job on this machine."""
    try:
        manifest = _read(options.file)
        folder: Path = options.output or Path("runs") / manifest.job.metadata.name
        decision = look(folder, options.begin)
        random = manifest.job.spec.training.model.random is not None
        resumes = decision is Decision.GO_ON
        there = resumes and (folder / INITIAL_MODEL).exists()
        sweep(SHARED_MEMORY)  # what killed runs left there does not count against this one
        asked = Asked(manifest, folder, options.share, free_memory(), resumes, random and not there)
        with checking(asked) as check:
            return _run_when_checked(asked, check, options)
    except ManifestError as error:
        return refuse(str(error))
    except CheckDied as error:
        return fail(f"rljob: {error}.")
    # It is a `FolderRefused` too, and must come first.
    except FolderFailed as error:
        return fail(f"rljob: {error}.")
    except FolderRefused as error:
        return refuse(f"rljob: {error}.")


def _run_when_checked(asked: Asked, check: Check, options: argparse.Namespace) -> int:
    """Start Ray, and begin workers on it, while the manifest is checked, and run the job on it where nothing
    is wrong."""
    job = asked.manifest.job
    with ExitStack() as stack:
        # Left by the job once it answers signals itself.
        ended = stack.enter_context(ExitStack())
        ended.enter_context(ended_by_signals(check.end))
        machine = stack.enter_context(started_machine(job, options.share))
        # Left before Ray is ended, and by the job, which watches Ray itself.
        watched = stack.enter_context(ExitStack())
        watched.enter_context(ended_with_ray(machine.processes, check.end))

        def hand_over() -> None:
            watched.close()
            ended.close()

        # Imported here, so that other commands do not load the driver and all that it needs.
        with large_imports():
            from rljob_runtime.driver.run import run as train
            from rljob_runtime.fleet.early_workers import begin_early_workers

        if machine.failure is None:
            machine.early = begin_early_workers(job, options.share)
        verdict = check.verdict()
        if (code := _told(verdict)) is not None:
            return code
        start = OwnStart()
        start.add(of_command(created(), verdict.over, machine.ready))
        called = program(sys.argv[0], shutil.which("rljob"), sys.executable)
        with held(asked.folder, asked.manifest.source.text.encode(), options.begin) as found:

            def begin() -> None:
                found.begin()
                check.make_model(found.folder / INITIAL_MODEL)

            run_options = RunOptions(
                folder=found.folder,
                manifest_folder=asked.manifest.folder,
                resume=found.resumes,
                live=not options.no_live,
                begin=begin,
                share=options.share,
                program=called,
                resume_command=resume_command(called, options),
                model_made=check.model_made,
            )
            return train(job, run_options, machine, start, hand_over)


def _told(verdict: Verdict) -> int | None:
    """Tell what was found; the exit code where the job is not to be run. Raises `ModuleNotFoundError` where
    the check did."""
    for warning in verdict.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if verdict.missing is not None:
        error = ModuleNotFoundError(f"No module named {verdict.missing!r}", name=verdict.missing)
        error.add_note(verdict.broken or "")
        raise error
    if verdict.broken is not None:
        return fail(verdict.broken)
    if verdict.unusable is not None:
        # As where it is found later: a disk that fails may work another time.
        return fail(f"rljob: {verdict.unusable}.")
    return refuse(str(ManifestError(verdict.errors))) if verdict.errors else None


def program(called: str, on_path: str | None, interpreter: str) -> str:
    """`rljob` as a person would type it here, quoted for a shell. `called`: how it was (`sys.argv[0]`);
    `on_path`: where the shell finds `rljob`; `interpreter`: the one that runs it without a script."""
    if Path(called).name != "rljob":
        return f"{shlex.quote(interpreter)} -m rljob_runtime.cli"
    return "rljob" if called == on_path else shlex.quote(called)


def resume_command(called: str, options: argparse.Namespace) -> str:
    """The command that goes on with the run that `options` begin; `called`: the program, quoted."""
    words = [str(options.file)]
    if options.output is not None:
        words += ["--output", str(options.output)]
    words += [flag for flag, given in (("--no-live", options.no_live), ("--share", options.share)) if given]
    return f"{called} run {shlex.join([*words, Begin.RESUME.value])}"


def drive(_: argparse.Namespace) -> int:
    """Run the RLJob of this pod."""
    with large_imports():
        from rljob_runtime.cluster.drive import drive as drive_here

    return drive_here()


def validate(options: argparse.Namespace) -> int:
    """Check every manifest, and tell everything that is wrong with any of them."""
    findings: list[Finding] = []
    broken: Exception | None = None
    try:
        for file in options.files:
            try:
                _check(file)
            except ManifestError as error:
                findings.extend(error.findings)
            except Exception as error:  # noqa: BLE001 - raised again once the other files are checked
                error.add_note(f"while {called(file)} was checked")
                broken = broken or error
            else:
                print(f"{called(file)}: valid")
    finally:
        if findings:
            print(render(findings), file=sys.stderr)
    if broken is not None:
        raise broken
    return ExitCode.REFUSED if findings else ExitCode.DONE


def simulate(options: argparse.Namespace) -> int:
    """Print what the job would do under each routing policy."""
    from rljob_runtime.data.length_trace import LengthTraceError
    from rljob_runtime.trace.forecast.simulate import Options, forecast
    from rljob_runtime.trace.report.page_file import NoPage

    try:
        text = forecast(
            Options(
                options.file,
                options.assumptions,
                options.trace,
                options.steps,
                options.seeds,
                options.size,
                options.html,
            )
        )
    except ManifestError as error:
        return refuse(str(error))
    except (LengthTraceError, NoPage) as error:
        return refuse(f"rljob: {error}.")
    except OSError as error:
        # Where the disk is full, it has no name.
        name = error.filename or options.html
        return fail(f"rljob: the page cannot be written: {name}: {error.strerror}.")
    print(text)
    return ExitCode.DONE


def crd(_: argparse.Namespace) -> int:
    """Print the CustomResourceDefinition."""
    import yaml

    from rljob_api.crd import custom_resource_definition

    print(
        yaml.safe_dump(custom_resource_definition(), sort_keys=False, allow_unicode=True, width=110), end=""
    )
    return ExitCode.DONE


def run_extension(command: ManifestCommand, options: argparse.Namespace) -> int:
    """Run another package's command. What the manifest refers to is in the cluster, and not looked for."""
    try:
        manifest = read(options.file)
        problems = command.run(manifest.job, options)
        if problems:
            raise ManifestError(manifest.find(problem) for problem in problems)
    except ManifestError as error:
        return refuse(str(error))
    return ExitCode.DONE


def _read(file: Path) -> Manifest:
    """The manifest. Raises `ManifestError`: where fields are wrong, also with what is wrong with what the
    right ones refer to."""
    try:
        return read(file)
    except ManifestError as error:
        if error.source is None:
            raise
        from rljob_runtime.manifest.right_parts import check_right_parts

        more = check_right_parts(file, error.source, error.findings)
        raise ManifestError([*error.findings, *more]) from error


def _check(file: Path) -> None:
    """Check a manifest with its pods and everything it refers to, and tell warnings; raises
    `ManifestError`."""
    from rljob_runtime.manifest.checks import check

    manifest = _read(file)
    errors, warnings = check(manifest)
    problems, missing = check_parts(manifest.job)
    errors += map(manifest.find, problems)
    warnings += map(manifest.find, _unread_templates(manifest.job, missing))
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if errors:
        raise ManifestError(errors)


def _unread_templates(job: RLJob, missing: Sequence[str]) -> Iterator[Problem]:
    """Each template of a job's pools that nobody has looked at."""
    pools = job.spec.pools
    shapes = {"head": pools.head, "trainer": pools.trainer}
    shapes |= {"fastRollout": pools.fast_rollout, "heavyRollout": pools.heavy_rollout}
    for name, shape in shapes.items():
        if "render" in missing and shape.template:
            yield Problem(("spec", "pools", name, "template"), f"is checked by {to_install('render')}")


def host_rewards(options: argparse.Namespace) -> int:
    """Start reward workers, until the process is ended."""
    from rljob_runtime.rewards.host import serve

    if (why := no_place(options.socket, "--socket")) is None:
        serve(options.socket)
    return refuse(f"rljob: {why}.")
