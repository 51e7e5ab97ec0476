"""One call of the plugin, which kubectl finds by its name, `kubectl-rljob`.

Guarantees: reads only; speaks to the API server that kubectl would speak to; an error is one line; nothing
that a job has written acts on the terminal, nor ends a command because the terminal's encoding lacks a
character: a `?` stands for it. Into a file or a pipe a log goes as kubectl gives it, byte by byte.
"""

import argparse
import asyncio
import io
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, TextIO

from rljob_api.stored_status import read_status
from rljob_client.client import ApiClient, ClientSettings
from rljob_client.credentials import Credentials, CredentialsError, find_credentials
from rljob_client.errors import ApiError, Gone, NoSuchResource, NotFound
from rljob_client.objects import Item
from rljob_client.resources import PODS, RLJOBS
from rljob_client.transport import Transport, Uncounted
from rljob_operator.kube.owners import ray_cluster_uid
from rljob_operator.kube.watch_rules import WatchRules
from rljob_operator.kubectl import text
from rljob_operator.kubectl.main import INTERRUPTED
from rljob_operator.kubectl.terminal_log import TerminalLog
from rljob_operator.plan.attempt import cluster_name
from rljob_operator.plan.conditions import finished
from rljob_operator.render.labels import ATTEMPT, JOB, POOL
from rljob_operator.render.names import DRIVER_CONTAINER

_CLEAR = "\x1b[H\x1b[2J"
_CHUNK = 64 * 1024


class _Job(Item):
    status: dict[str, Any] = {}


class _Told(Exception):
    """An error whose message is for people."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    try:
        options = _parser().parse_args(arguments)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        kubeconfig = Path(options.kubeconfig) if options.kubeconfig else None
        credentials = find_credentials(kubeconfig, options.context, as_kubectl=True)
        command = asyncio.run(_run(options, credentials))
        if command:
            return _logged(command)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        # Whoever reads has read enough, as `head` does. At its end Python would write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ApiError, CredentialsError, _Told) as error:
        print(f"kubectl rljob: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _logged(command: list[str]) -> int:
    """Run kubectl's command for a log; the exit code."""
    try:
        if sys.stdout.isatty():
            return show(command, sys.stdout)
        # In place of this process: kubectl itself then has the pipe, Ctrl-C and the exit code.
        os.execvp(command[0], command)
    except OSError as error:
        raise _Told(f"{command[0]} cannot be run: {error.strerror}") from None
    return 0


def show(command: Sequence[str], terminal: TextIO) -> int:
    """Run a command that prints a log, and show that on a terminal; the exit code. Raises `OSError` where it
    cannot be run."""
    log = TerminalLog()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as printing:
        assert printing.stdout is not None
        try:
            while chunk := os.read(printing.stdout.fileno(), _CHUNK):
                terminal.write(log.text(chunk))
                terminal.flush()
        except KeyboardInterrupt:
            # It got the terminal's Ctrl-C as well, unless it was this process alone that was interrupted.
            printing.terminate()
            return INTERRUPTED
        finally:
            terminal.write(log.end())
            terminal.flush()
    return printing.returncode


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("name", type=_name, help="the RLJob")
    shared.add_argument("-n", "--namespace", help="default: the context's")
    shared.add_argument("--kubeconfig")
    shared.add_argument("--context")
    parser = argparse.ArgumentParser(prog="kubectl rljob", description="RLJobs for people.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    commands.add_parser("status", parents=[shared], help="where a job stands, and why")
    logs = commands.add_parser("logs", parents=[shared], help="the driver's log")
    logs.add_argument("-f", "--follow", action="store_true")
    commands.add_parser("top", parents=[shared], help="watch the training until it ends")
    return parser


def _name(text: str) -> str:
    """Not that of a variable that is not set: the API server would answer with all jobs."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the RLJob's name is empty: is a variable not set?")
    return text


async def _run(options: argparse.Namespace, credentials: Credentials) -> list[str]:
    """Carry out a command; what is to be run instead of this process, if anything."""
    namespace: str = options.namespace or credentials.namespace
    async with Transport(credentials, Uncounted(), user_agent="kubectl-rljob") as transport:
        client = ApiClient(transport, ClientSettings("kubectl-rljob"), Random())
        try:
            job = await client.get(RLJOBS, namespace, options.name, _Job)
        except NoSuchResource:
            # Not the job is missing, but its definition: the error says what to install.
            raise
        except NotFound:
            raise _Told(f"there is no RLJob {options.name} in namespace {namespace}") from None
        if options.command == "status":
            print("\n".join(text.whole(namespace, options.name, read_status(job.status), datetime.now(UTC))))
        elif options.command == "top":
            await _top(client, namespace, job)
        else:
            return await _logs(client, namespace, job, options)
    return []


async def _logs(client: ApiClient, namespace: str, job: _Job, options: argparse.Namespace) -> list[str]:
    """kubectl's own command for the head pod of the newest attempt."""
    name, attempt = job.metadata.name, read_status(job.status).attempt
    selector = f"{JOB}={name},{ATTEMPT}={attempt},{POOL}=head"
    found = await client.list(PODS, Item, namespace, selector)
    # Whoever may create pods may give them these labels.
    heads = [pod for pod in found if ray_cluster_uid(pod, cluster_name(name, attempt))]
    if not heads:
        raise _Told(f"RLJob {name} has no head pod now: see `kubectl rljob status {name}`")
    # KubeRay may have made a second head pod in the attempt, and the first may still be there.
    newest = max(heads, key=lambda pod: pod.metadata.creation_timestamp)
    command = ["kubectl", "logs", "-n", namespace, newest.metadata.name, "-c", DRIVER_CONTAINER]
    command += [f"--kubeconfig={options.kubeconfig}"] if options.kubeconfig else []
    command += [f"--context={options.context}"] if options.context else []
    return [*command, "-f"] if options.follow else command


async def _top(client: ApiClient, namespace: str, job: _Job) -> None:
    """Print the job anew whenever it changes, in place on a terminal, until it has ended."""
    # Into a file or a pipe: a line for each change, without control characters.
    in_place = sys.stdout.isatty()
    async with aclosing(_versions(client, namespace, job)) as versions:
        async for version in versions:
            status = read_status(version.status)
            lines = [text.headline(namespace, version.metadata.name, status)]
            if in_place:
                lines = text.whole(namespace, version.metadata.name, status, datetime.now(UTC))
            elif status.training is not None:
                lines += text.training(status.training)
            print((_CLEAR if in_place else "") + "\n".join(lines), flush=True)
            if finished(status):
                return
    raise _Told(f"RLJob {job.metadata.name} was deleted")


async def _versions(client: ApiClient, namespace: str, job: _Job) -> AsyncGenerator[_Job, None]:
    """The job as it is, then each time that it changes, until it is deleted. A watch that ends, by whatever
    passes by itself, is followed by another; ApiError where the job cannot be read either."""
    rules, failures, random = WatchRules(), 0, Random()
    while True:
        yield job
        version = job.metadata.resource_version
        selector = f"metadata.name={job.metadata.name}"
        began, failed = time.monotonic(), None
        try:
            changes = client.watch(RLJOBS, _Job, version, namespace, field_selector=selector)
            async with changes as stream:
                async for change in stream:
                    if change.kind == "DELETED":
                        return
                    if change.item is not None:
                        job = change.item
                        yield job
        except ApiError as error:
            if not (error.retryable or isinstance(error, Gone)):
                raise
            failed = error
        following = rules.after_watch(failed, time.monotonic() - began, failures, random)
        failures = following.failures
        await asyncio.sleep(following.wait_seconds)
        try:
            job = await client.get(RLJOBS, namespace, job.metadata.name, _Job)
        except NoSuchResource:
            # Its definition was deleted, or is not served now, of which the job itself says nothing.
            raise
        except NotFound:
            return
