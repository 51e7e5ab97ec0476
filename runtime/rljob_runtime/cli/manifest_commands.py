"""The commands of `rljob` that take a manifest.

Guarantees: a manifest is checked whole, and the machine measured, before anything is started.
"""

import argparse
import shlex
import shutil
import sys
from pathlib import Path

from rljob_runtime.cli.endings import fail, refuse
from rljob_runtime.cli.extensions import ManifestCommand
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.manifest.load import Finding, Manifest, ManifestError, read, render
from rljob_runtime.run_folder import Begin, FolderFailed, FolderRefused, RunOptions, held
from rljob_runtime.site.large_imports import large_imports
from rljob_runtime.site.own_start import created


def run(options: argparse.Namespace) -> int:
    """Run the job on this machine."""
    try:
        manifest = _checked(options.file)
        folder: Path = options.output or Path("runs") / manifest.job.metadata.name
        _check_machine(manifest, folder, options.share)
        with held(folder, options.file, options.begin) as (run_folder, resume):
            # Imported here, so that other commands do not load the driver and all that it needs.
            with large_imports():
                from rljob_runtime.driver.run import run as train

            called = program(sys.argv[0], shutil.which("rljob"), sys.executable)
            return train(
                manifest.job,
                RunOptions(
                    folder=run_folder,
                    manifest_folder=manifest.folder,
                    resume=resume,
                    live=not options.no_live,
                    share=options.share,
                    program=called,
                    resume_command=resume_command(called, options),
                    since=created(),
                ),
            )
    except ManifestError as error:
        return refuse(str(error))
    # It is a `FolderRefused` too, and must come first.
    except FolderFailed as error:
        return fail(f"rljob: {error}.")
    except FolderRefused as error:
        return refuse(f"rljob: {error}.")


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
                _checked(file)
            except ManifestError as error:
                findings.extend(error.findings)
            except Exception as error:  # noqa: BLE001 - raised again once the other files are checked
                error.add_note(f"while {file} was checked")
                broken = broken or error
            else:
                print(f"{file}: valid")
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
    except LengthTraceError as error:
        return refuse(f"rljob: {error}.")
    except OSError as error:
        return fail(f"rljob: the page cannot be written: {error.filename}: {error.strerror}.")
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


def _checked(file: Path) -> Manifest:
    """The manifest, with everything it refers to looked at; raises `ManifestError`, and tells warnings."""
    from rljob_runtime.manifest.checks import check
    from rljob_runtime.manifest.right_parts import check_right_parts

    try:
        manifest = read(file)
    except ManifestError as error:
        raise ManifestError([*error.findings, *check_right_parts(file, error.findings)]) from error
    errors, warnings = check(manifest)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if errors:
        raise ManifestError(errors)
    return manifest


def _check_machine(manifest: Manifest, folder: Path, share: bool) -> None:
    """Raise `ManifestError` when the job does not fit this machine."""
    from rljob_runtime.manifest.adapters import model_size
    from rljob_runtime.manifest.checks import model_parameters
    from rljob_runtime.manifest.preflight import measure, preflight
    from rljob_runtime.site.scratch import sweep
    from rljob_runtime.weights.shm import SHARED_MEMORY

    job = manifest.job
    path = job.spec.training.checkpoint.path
    checkpoints = manifest.folder / path if path is not None else folder.absolute()
    size = model_size(job, manifest.folder, model_parameters(job, manifest.folder))
    sweep(SHARED_MEMORY)  # what killed runs left there does not count against this one
    problems = preflight(job, size, measure(job, checkpoints, share))
    if problems:
        raise ManifestError(manifest.find(problem) for problem in problems)


def host_rewards(options: argparse.Namespace) -> int:
    """Start reward workers, until the process is ended."""
    from rljob_runtime.rewards.host import serve

    serve(options.socket)
