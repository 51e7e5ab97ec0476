"""The `rljob` command.

Guarantees: a manifest is checked whole, and the machine measured, before anything is started; errors are
single lines on standard error; the exit code says whether to try again (`exit_codes.py`).
"""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rljob_runtime.commands import CommandMissing, ManifestCommand, add_commands
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.manifest.load import Finding, Manifest, ManifestError, read, render
from rljob_runtime.run_folder import Begin, FolderFailed, FolderRefused, RunOptions, held, holds_run

_NO_RUN = "holds no run; give the folder that `rljob run` wrote."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. argparse itself exits with 2 for wrong arguments."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = parser(arguments[0] if arguments else None).parse_args(arguments)
        code: int = options.command(options)
    except CommandMissing as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        # A module of this project that is missing is a defect, and no package to install.
        if error.name is None or error.name.startswith("rljob"):
            raise
        return _refuse(
            f"rljob: the package {error.name} is not installed: from the checkout, pip install '.[runtime]'."
        )
    except KeyboardInterrupt:
        print("rljob: interrupted.", file=sys.stderr)
        return ExitCode.STOPPED
    return code


def parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser of the built-in commands, and of others as far as `chosen`, the first argument, needs."""
    top = argparse.ArgumentParser(
        prog="rljob",
        description="Reinforcement learning of language models, from one manifest.",
        epilog="exit codes: 0 done, 1 failed (worth a retry), 2 manifest or machine does not fit, "
        "130 stopped after a checkpoint",
    )
    top.add_argument("--version", action="version", version=f"rljob {version('rljob')}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    # What every command has that looks at a run.
    of_run = argparse.ArgumentParser(add_help=False)
    of_run.add_argument("folder", type=Path, metavar="DIR", help="the run's folder")

    run = commands.add_parser("run", help="run a job on this machine")
    run.add_argument("file", type=Path, help="the RLJob manifest")
    run.add_argument("--output", type=Path, metavar="DIR", help="the run's folder (default: runs/NAME)")
    again = run.add_mutually_exclusive_group()
    for begin, text in (
        (Begin.RESUME, "go on from the newest checkpoint of the run in the folder"),
        (Begin.RESTART, "begin anew; an earlier run is kept as DIR.1"),
        (Begin.AUTO_RESUME, "go on with a run that is not finished; otherwise begin anew, as --restart does"),
    ):
        again.add_argument(begin.value, dest="begin", action="store_const", const=begin, help=text)
    run.add_argument("--no-live", action="store_true", help="plain log lines, also on a terminal")
    run.add_argument("--share", action="store_true", help="let workers share this machine's accelerators")
    run.set_defaults(command=_run, begin=Begin.NEW)

    drive = commands.add_parser("drive", help="run the RLJob of this pod; the operator starts it")
    drive.set_defaults(command=_drive)

    validate = commands.add_parser("validate", help="check manifests and all that they refer to")
    validate.add_argument("files", type=Path, nargs="+", metavar="FILE", help="RLJob manifests")
    validate.set_defaults(command=_validate)

    export = commands.add_parser(
        "export", parents=[of_run], help="write a checkpoint of a run as a Hugging Face model"
    )
    export.add_argument("destination", type=Path, metavar="MODEL", help="the folder to write")
    export.add_argument("--step", type=int, metavar="N", help="the checkpoint's step (default: the newest)")
    export.set_defaults(command=_export)

    report = commands.add_parser("report", parents=[of_run], help="write the HTML report of a run")
    report.set_defaults(command=_report)

    samples = commands.add_parser("samples", parents=[of_run], help="what the model said in a run")
    samples.add_argument("--step", type=_number, metavar="N", help="the step (default: the newest)")
    order = samples.add_mutually_exclusive_group()
    for name in ("best", "worst", "longest", "random"):
        text = "at random" if name == "random" else f"the {name} first"
        order.add_argument(f"--{name}", dest="order", action="store_const", const=name, help=text)
    prompt = samples.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", type=_number, metavar="UID", help="the responses to one prompt")
    prompt.add_argument(
        "--row", type=_number, metavar="ROW", help="the same prompt over time, by its row of the data"
    )
    samples.add_argument("--count", type=_at_least_one, metavar="N", help="at most N responses")
    samples.add_argument("--json", action="store_true", help="as they stand in samples.jsonl")
    samples.set_defaults(command=_samples)

    simulate = commands.add_parser("simulate", help="predict what a job would do under each routing policy")
    simulate.add_argument("file", type=Path, help="the RLJob manifest")
    simulate.add_argument("--trace", type=Path, metavar="LENGTHS", help="recorded lengths: RUN/lengths.jsonl")
    simulate.add_argument(
        "--assumptions",
        type=Path,
        metavar="YAML",
        help="what engines and training cost; see `rljob trace fit`",
    )
    simulate.add_argument("--steps", type=_at_least_one, metavar="N", help="training steps to simulate")
    simulate.add_argument(
        "--seeds", type=_at_least_one, default=3, metavar="N", help="workloads of each policy (default: 3)"
    )
    wanted = simulate.add_mutually_exclusive_group()
    wanted.add_argument(
        "--size", type=_at_least_one, metavar="N", help="the best pool sizes for N accelerators instead"
    )
    wanted.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a page with what each engine ran over time"
    )
    simulate.set_defaults(command=_simulate)

    trace = commands.add_parser("trace", help="what a run recorded").add_subparsers(
        required=True, metavar="WHAT"
    )
    fit = trace.add_parser(
        "fit", parents=[of_run], help="print what engines and training cost, for `rljob simulate`"
    )
    fit.set_defaults(command=_fit)

    responses = trace.add_parser(
        "responses",
        parents=[of_run],
        help="where the longest responses of a step ran, why they moved, and what was expected",
    )
    responses.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="the step (default: the one with most moves, or the slowest)",
    )
    responses.set_defaults(command=_responses)

    crd = commands.add_parser("crd", help="print the CustomResourceDefinition")
    crd.set_defaults(command=_crd)

    add_commands(commands, chosen, _run_command)
    return top


def _run(options: argparse.Namespace) -> int:
    try:
        manifest = _checked(options.file)
        folder: Path = options.output or Path("runs") / manifest.job.metadata.name
        _check_machine(manifest, folder, options.share)
        with held(folder, options.file, options.begin) as (run_folder, resume):
            # Imported here, so that other commands do not load the driver and all that it needs.
            from rljob_runtime.driver.run import run

            called = program(sys.argv[0], shutil.which("rljob"), sys.executable)
            return run(
                manifest.job,
                RunOptions(
                    folder=run_folder,
                    manifest_folder=manifest.folder,
                    resume=resume,
                    live=not options.no_live,
                    share=options.share,
                    program=called,
                    resume_command=resume_command(called, options),
                ),
            )
    except ManifestError as error:
        return _refuse(str(error))
    # It is a `FolderRefused` too, and must come first.
    except FolderFailed as error:
        return _fail(f"rljob: {error}.")
    except FolderRefused as error:
        return _refuse(f"rljob: {error}.")


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


def _drive(_: argparse.Namespace) -> int:
    from rljob_runtime.cluster.drive import drive

    return drive()


def _validate(options: argparse.Namespace) -> int:
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


def _report(options: argparse.Namespace) -> int:
    if not holds_run(options.folder):
        return _refuse(f"rljob: {options.folder} {_NO_RUN}")
    from rljob_runtime.trace.report.page import write_report

    try:
        print(write_report(options.folder))
    except OSError as error:
        return _fail(f"rljob: the report cannot be written: {error.filename}: {error.strerror}.")
    return ExitCode.DONE


def _simulate(options: argparse.Namespace) -> int:
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
        return _refuse(str(error))
    except LengthTraceError as error:
        return _refuse(f"rljob: {error}.")
    except OSError as error:
        return _fail(f"rljob: the page cannot be written: {error.filename}: {error.strerror}.")
    print(text)
    return ExitCode.DONE


def _fit(options: argparse.Namespace) -> int:
    if not holds_run(options.folder):
        return _refuse(f"rljob: {options.folder} {_NO_RUN}")
    from rljob_runtime.trace.forecast.run_fit import NothingToFit, fit_run

    try:
        print(fit_run(options.folder), end="")
    except NothingToFit as error:
        return _refuse(f"rljob: {error}")
    return ExitCode.DONE


def _responses(options: argparse.Namespace) -> int:
    if not holds_run(options.folder):
        return _refuse(f"rljob: {options.folder} {_NO_RUN}")
    from rljob_runtime.trace.report.responses_text import NoSuchStep, responses_text

    try:
        print(responses_text(options.folder, options.step))
    except NoSuchStep as error:
        return _refuse(f"rljob: {error}")
    return ExitCode.DONE


def _samples(options: argparse.Namespace) -> int:
    if not holds_run(options.folder):
        return _refuse(f"rljob: {options.folder} {_NO_RUN}")
    from rljob_runtime.trace.report.samples_text import NoSamples, Wanted, samples_text

    wanted = Wanted(options.step, options.order, options.prompt, options.row, options.count, options.json)
    try:
        text = samples_text(options.folder, wanted, min(120, shutil.get_terminal_size((100, 24)).columns))
    except NoSamples as error:
        return _refuse(f"rljob: {error}")
    except OSError as error:
        return _fail(f"rljob: the samples cannot be read: {error.filename}: {error.strerror}.")
    # A model writes characters that an old terminal does not have.
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Whoever reads has read enough, as `head` does. At its exit Python would write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.DONE


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise argparse.ArgumentTypeError(f"must be a number from 0 (found {text})")
    return int(text)


def _at_least_one(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 1000000 (found {text})")
    return number


def _export(options: argparse.Namespace) -> int:
    if not holds_run(options.folder):
        return _refuse(f"rljob: {options.folder} {_NO_RUN}")
    if options.destination.exists():
        return _refuse(f"rljob: {options.destination} exists already; name a folder that does not.")
    from rljob_runtime.driver.export import ExportRefused, export
    from rljob_runtime.trainer.checkpoint import CheckpointError

    try:
        step = export(options.folder, options.destination, options.step)
    except ExportRefused as error:
        return _refuse(f"rljob: {error}.")
    except CheckpointError as error:
        return _fail(f"rljob: {error}.")
    print(f"{options.destination}: the model of step {step}")
    return ExitCode.DONE


def _crd(_: argparse.Namespace) -> int:
    import yaml

    from rljob_api.crd import custom_resource_definition

    print(
        yaml.safe_dump(custom_resource_definition(), sort_keys=False, allow_unicode=True, width=110), end=""
    )
    return ExitCode.DONE


def _run_command(command: ManifestCommand, options: argparse.Namespace) -> int:
    """Run another package's command. What the manifest refers to is in the cluster, and not looked for."""
    try:
        manifest = read(options.file)
        problems = command.run(manifest.job, options)
        if problems:
            raise ManifestError(manifest.find(problem) for problem in problems)
    except ManifestError as error:
        return _refuse(str(error))
    return ExitCode.DONE


def _checked(file: Path) -> Manifest:
    """The manifest, with everything it refers to looked at; raises `ManifestError`, and tells warnings."""
    from rljob_runtime.manifest.checks import check

    manifest = read(file)
    errors, warnings = check(manifest)
    if errors:
        raise ManifestError(errors)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return manifest


def _check_machine(manifest: Manifest, folder: Path, share: bool) -> None:
    """Raise `ManifestError` when the job does not fit this machine."""
    from rljob_runtime.manifest.checks import model_parameters
    from rljob_runtime.manifest.preflight import measure, preflight
    from rljob_runtime.site.scratch import sweep
    from rljob_runtime.weights.shm import SHARED_MEMORY

    job = manifest.job
    path = job.spec.training.checkpoint.path
    checkpoints = manifest.folder / path if path is not None else folder.absolute()
    parameters = model_parameters(job, manifest.folder)
    sweep(SHARED_MEMORY)  # what killed runs left there does not count against this one
    problems = preflight(job, parameters, measure(job, checkpoints, share))
    if problems:
        raise ManifestError(manifest.find(problem) for problem in problems)


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return ExitCode.REFUSED


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return ExitCode.FAILED


if __name__ == "__main__":
    sys.exit(main())
