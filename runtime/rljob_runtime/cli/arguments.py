"""What can be typed after `rljob`."""

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from rljob_runtime.authoring.answers import QUESTIONS
from rljob_runtime.cli import authoring_commands, manifest_commands, run_commands
from rljob_runtime.cli.extensions import add_commands
from rljob_runtime.run_folder import Begin

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_OR_STDIN = " (-: standard input)"


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

    _add_run(commands)
    drive = commands.add_parser("drive", help="run the RLJob of this pod; the operator starts it")
    drive.set_defaults(command=manifest_commands.drive)

    host = commands.add_parser(
        "host-rewards", help="start the reward workers of this pod's driver; the operator starts it"
    )
    host.add_argument("--socket", type=Path, required=True, help="where to listen; its folder exists")
    host.set_defaults(command=manifest_commands.host_rewards)
    validate = commands.add_parser("validate", help="check manifests and all that they refer to")
    validate.add_argument("files", type=Path, nargs="+", metavar="FILE", help=f"RLJob manifests{_OR_STDIN}")
    validate.set_defaults(command=manifest_commands.validate)
    _add_new(commands)
    _add_from_verl(commands)
    _add_export(commands, of_run)
    report = commands.add_parser("report", parents=[of_run], help="write the HTML report of a run")
    report.add_argument(
        "--output", type=Path, metavar="FILE", help="the page; -: printed (default: DIR/report.html)"
    )
    report.set_defaults(command=run_commands.report)
    _add_samples(commands, of_run)
    _add_simulate(commands)
    _add_trace(commands, of_run)
    crd = commands.add_parser("crd", help="print the CustomResourceDefinition")
    crd.set_defaults(command=manifest_commands.crd)
    add_commands(commands, chosen, manifest_commands.run_extension)
    return top


def _add_run(commands: _Commands) -> None:
    run = commands.add_parser("run", help="run a job on this machine")
    run.add_argument("file", type=Path, help=f"the RLJob manifest{_OR_STDIN}")
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
    run.set_defaults(command=manifest_commands.run, begin=Begin.NEW)


def _add_new(commands: _Commands) -> None:
    new = commands.add_parser("new", help="write the manifest of a new job, from flags or a few questions")
    for question in QUESTIONS:
        text = question.text + (f" (default: {question.default})" if question.default else "")
        shown = f"{{{','.join(question.choices)}}}" if question.choices else None
        new.add_argument(question.flag, metavar=shown, help=text.replace("%", "%%"))
    _add_output(new)
    new.set_defaults(command=authoring_commands.new)


def _add_from_verl(commands: _Commands) -> None:
    convert = commands.add_parser(
        "from-verl", help="turn a launch script of verl into a manifest, and list what has no counterpart"
    )
    convert.add_argument(
        "script", type=Path, metavar="SCRIPT", help=f"the shell script{_OR_STDIN}; it is read, never run"
    )
    convert.add_argument(
        "--set",
        type=_variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable that the script takes from its environment, such as HOME=/home/me",
    )
    _add_output(convert)
    convert.set_defaults(command=authoring_commands.from_verl)


def _add_output(writing: argparse.ArgumentParser) -> None:
    writing.add_argument(
        "--output", type=_written, metavar="FILE", help="the manifest (default, and -: printed)"
    )
    writing.add_argument("--force", action="store_true", help="replace FILE if it is there")


def _add_export(commands: _Commands, of_run: argparse.ArgumentParser) -> None:
    export = commands.add_parser(
        "export", parents=[of_run], help="write a checkpoint of a run as a Hugging Face model"
    )
    export.add_argument("destination", type=Path, metavar="MODEL", help="the folder to write")
    export.add_argument("--step", type=int, metavar="N", help="the checkpoint's step (default: the newest)")
    export.add_argument(
        "--adapter", action="store_true", help="write the adapter alone, as peft and vLLM load it"
    )
    export.set_defaults(command=run_commands.export)


def _add_samples(commands: _Commands, of_run: argparse.ArgumentParser) -> None:
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
    samples.add_argument(
        "--evaluation",
        nargs="?",
        const="",
        metavar="SET",
        help="what it said in evaluations (of one set), after so many steps as --step says",
    )
    samples.add_argument("--count", type=_at_least_one, metavar="N", help="at most N responses")
    samples.add_argument(
        "--json", action="store_true", help="as they stand in samples.jsonl, or evaluation_samples.jsonl"
    )
    samples.set_defaults(command=run_commands.samples)


def _add_simulate(commands: _Commands) -> None:
    simulate = commands.add_parser("simulate", help="predict what a job would do under each routing policy")
    simulate.add_argument("file", type=Path, help=f"the RLJob manifest{_OR_STDIN}")
    simulate.add_argument("--trace", type=Path, metavar="LENGTHS", help="recorded lengths: RUN/lengths.jsonl")
    simulate.add_argument(
        "--assumptions",
        type=Path,
        metavar="YAML",
        help=f"what engines and training cost{_OR_STDIN}; see `rljob trace fit`",
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
    simulate.set_defaults(command=manifest_commands.simulate)


def _add_trace(commands: _Commands, of_run: argparse.ArgumentParser) -> None:
    trace = commands.add_parser("trace", help="what a run recorded").add_subparsers(
        required=True, metavar="WHAT"
    )
    fit = trace.add_parser(
        "fit", parents=[of_run], help="print what engines and training cost, for `rljob simulate`"
    )
    fit.set_defaults(command=run_commands.fit)
    export = trace.add_parser(
        "export", parents=[of_run], help="write all events for Perfetto, chrome://tracing or OpenTelemetry"
    )
    export.add_argument(
        "--format",
        choices=["trace-event", "otlp"],
        default="trace-event",
        help="trace-event: for Perfetto and chrome://tracing (default); otlp: spans for OpenTelemetry",
    )
    export.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the file, compressed if its name ends in .gz; -: printed (default: DIR/trace.json.gz, or "
        "trace.otlp.jsonl)",
    )
    export.set_defaults(command=run_commands.export_trace)
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
    responses.set_defaults(command=run_commands.responses)


def _written(text: str) -> Path | None:
    """Where a manifest is written; None where it is printed."""
    return None if text == "-" else Path(text)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not (name.isascii() and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE (found {text})")
    return name, value


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise argparse.ArgumentTypeError(f"must be a number from 0 (found {text})")
    return int(text)


def _at_least_one(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 1000000 (found {text})")
    return number
