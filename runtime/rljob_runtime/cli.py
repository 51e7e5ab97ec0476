"""The `rljob` command.

Guarantees: a manifest is checked whole, and the machine measured, before anything is started; errors are
single lines on standard error; the exit code says whether to try again (`exit_codes.py`).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.manifest import Manifest, ManifestError, read, render
from rljob_runtime.run_folder import FolderRefused, RunOptions, held, holds_run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. argparse itself exits with 2 for wrong arguments."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rljob"):
            raise
        return _refuse(f"rljob: the package {error.name} is not installed: pip install 'rljob[runtime]'.")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rljob",
        description="Reinforcement learning of language models, from one manifest.",
        epilog="exit codes: 0 done, 1 failed (worth a retry), 2 manifest or machine does not fit, "
        "130 stopped after a checkpoint",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a job on this machine")
    run.add_argument("file", type=Path, help="the RLJob manifest")
    run.add_argument("--output", type=Path, metavar="DIR", help="the run's folder (default: runs/NAME)")
    again = run.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on from the folder's newest checkpoint")
    again.add_argument("--restart", action="store_true", help="begin anew; an earlier run is kept as DIR.1")
    run.add_argument("--no-live", action="store_true", help="plain log lines, also on a terminal")
    run.add_argument("--share", action="store_true", help="let workers share this machine's accelerators")
    run.set_defaults(command=_run)

    validate = commands.add_parser("validate", help="check manifests and all that they refer to")
    validate.add_argument("files", type=Path, nargs="+", metavar="FILE", help="RLJob manifests")
    validate.set_defaults(command=_validate)

    report = commands.add_parser("report", help="write the HTML report of a run")
    report.add_argument("folder", type=Path, metavar="DIR", help="the run's folder")
    report.set_defaults(command=_report)

    crd = commands.add_parser("crd", help="print the CustomResourceDefinition")
    crd.set_defaults(command=_crd)
    return parser


def _run(options: argparse.Namespace) -> int:
    try:
        manifest = _checked(options.file)
        folder: Path = options.output or Path("runs") / manifest.job.metadata.name
        _check_machine(manifest, folder, options.share)
        with held(folder, options.file, resume=options.resume, restart=options.restart) as run_folder:
            from rljob_runtime.driver import run

            return run(
                manifest.job,
                RunOptions(
                    folder=run_folder,
                    manifest_folder=manifest.folder,
                    resume=options.resume,
                    live=not options.no_live,
                    share=options.share,
                ),
            )
    except ManifestError as error:
        return _refuse(str(error))
    except FolderRefused as error:
        return _refuse(f"rljob: {error}.")


def _validate(options: argparse.Namespace) -> int:
    findings = []
    for file in options.files:
        try:
            _checked(file)
        except ManifestError as error:
            findings.extend(error.findings)
        else:
            print(f"{file}: valid")
    return _refuse(render(findings)) if findings else ExitCode.DONE


def _report(options: argparse.Namespace) -> int:
    if not holds_run(options.folder):
        return _refuse(f"rljob: {options.folder} holds no run; give the folder that `rljob run` wrote.")
    from rljob_runtime.trace.report import write_report

    print(write_report(options.folder))
    return ExitCode.DONE


def _crd(_: argparse.Namespace) -> int:
    import yaml

    from rljob_api.crd import custom_resource_definition

    print(
        yaml.safe_dump(custom_resource_definition(), sort_keys=False, allow_unicode=True, width=110), end=""
    )
    return ExitCode.DONE


def _checked(file: Path) -> Manifest:
    """The manifest, with everything it refers to; raises `ManifestError`."""
    from rljob_runtime.checks import check

    manifest = read(file)
    findings = check(manifest)
    if findings:
        raise ManifestError(findings)
    return manifest


def _check_machine(manifest: Manifest, folder: Path, share: bool) -> None:
    """Raise `ManifestError` when the job does not fit this machine."""
    from rljob_runtime.checks import model_parameters
    from rljob_runtime.preflight import measure, preflight

    job = manifest.job
    path = job.spec.training.checkpoint.path
    checkpoints = manifest.folder / path if path is not None else folder.absolute()
    parameters = model_parameters(job, manifest.folder)
    problems = preflight(job, parameters, measure(job, checkpoints, share))
    if problems:
        raise ManifestError(manifest.find(problem) for problem in problems)


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return ExitCode.REFUSED


if __name__ == "__main__":
    sys.exit(main())
