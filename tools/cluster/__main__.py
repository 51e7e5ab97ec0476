"""`python -m tools.cluster build | up | run | load | down`: the local Kubernetes by hand.

`up` leaves one process behind, the holder, which has the cluster in the project's folder .cluster/ and
outlives the shell. `down` ends exactly that process, which ends its cluster first. If it is killed, the
cluster ends with it.
"""

import argparse
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from tools.cluster import (
    KUBERAY_VERSIONS,
    NODES,
    CannotBuild,
    Cluster,
    ProcessFailed,
    cgroups,
    demo,
    holder,
    prepare,
)
from tools.cluster.binaries import program
from tools.cluster.families import FAMILIES, HELM, KUBE
from tools.cluster.holder import FolderRefused
from tools.cluster.node_probe import why_no_node
from tools.cluster.node_shell import NodeShell
from tools.cluster.processes import ended_within
from tools.cluster.product import build_images

ROOT = Path(__file__).parents[2]
START_SECONDS = 300.0
"""For a cluster to be ready."""
STOP_SECONDS = 120.0
"""For it to end. One that is starting ends when it is ready."""
READY = "ready"
GPU, NPU = NODES


def up(options: argparse.Namespace) -> None:
    """Starts a holder process and returns when its cluster is ready."""
    folder: Path = options.folder
    _check_node(options)
    # Here and not in the holder: what is built, and what is missing for it, is told on this terminal.
    if holder.holder(folder) is None:
        prepare([options.kuberay], node=options.node)
    with holder.starting(folder):
        if there := holder.holder(folder):
            print(f"a cluster runs already, as process {there.pid} since {holder.since(folder)}; options do")
            print("not change it. `make cluster-down` ends it, for everyone who uses it.")
        else:
            holder.make(folder)
            (folder / "bin").mkdir()
            (folder / "bin" / "kubectl").symlink_to(program(KUBE, "kubectl"))
            if options.node:
                (folder / "bin" / "helm").symlink_to(program(HELM, "helm"))
            print(_start_holder(options), end="")
    print(f"export KUBECONFIG={shlex.quote(str(folder / 'kubeconfig'))}")
    print(f"export PATH={shlex.quote(str(folder / 'bin'))}:$PATH    # for kubectl")


def _check_node(options: argparse.Namespace) -> None:
    """Where a node is asked for. CannotBuild: this machine can be none. ProcessFailed: the cluster that runs
    has none."""
    if not options.node:
        return
    if why := why_no_node():
        raise CannotBuild(why)
    there = holder.holder(options.folder)
    if there is not None and not there.node:
        raise ProcessFailed("the cluster that runs has no node: end it by `make cluster-down` first")


def _start_holder(options: argparse.Namespace) -> str:
    """What the holder reports of its start. ProcessFailed, TimeoutError: then it has ended."""
    log = options.folder / "holder.log"
    reading, writing = os.pipe()
    arguments = [f"--folder={options.folder}", f"--kuberay={options.kuberay}"]
    arguments += [f"--nodes={options.nodes}", f"--npu-nodes={options.npu_nodes}", f"--report={writing}"]
    arguments += ["--node"] if options.node else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.cluster", "hold", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[writing],
            start_new_session=True,
        )
    os.close(writing)  # the pipe ends with the holder only if nobody else can write to it
    # Before it is ready: `down` ends a holder that is still starting, too.
    holder.note(options.folder, process.pid, options.node)
    try:
        report = _read_report(reading, log)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if not report.endswith(READY):
        process.wait()
        raise ProcessFailed(f"the cluster did not start:\n{log.read_text()[-3000:]}")
    return report.removesuffix(READY)


def down(options: argparse.Namespace) -> None:
    """Ends the holder process of `up`, which ends its cluster first."""
    folder: Path = options.folder
    there = holder.holder(folder)
    if there is not None:
        os.kill(there.pid, signal.SIGTERM)
        seconds = START_SECONDS + STOP_SECONDS
        if not ended_within(there.pid, seconds):
            raise TimeoutError(
                f"process {there.pid} still runs after {seconds:.0f} s: see {folder}/holder.log"
            )
    holder.remove(folder)
    cgroups.remove_unused()  # of a node whose holder was killed
    print("no cluster runs" if there is None else "the cluster is gone")


def train(options: argparse.Namespace) -> None:
    """`up` with a node if no cluster runs, then the example in it, to its report."""
    options.node = True
    up(options)
    demo.show(options.folder)


def load(options: argparse.Namespace) -> None:
    """Makes an image usable by the pods of the cluster that `up --node` started."""
    if not options.archive.is_file():
        raise ProcessFailed(f"{options.archive}: there is no such archive")
    new = NodeShell(options.folder).load(options.archive.absolute(), options.image)
    print(f"{options.image} {'is loaded' if new else 'was there already'}")


def hold(options: argparse.Namespace) -> None:
    """The holder: starts a cluster, reports to a pipe, and ends the cluster on SIGTERM."""
    # A pipe, which keeps a SIGTERM that comes during the start until the cluster can be ended.
    asked_to_end, tell = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(tell, b"."))
    nodes = {} if options.node else {GPU: options.nodes, NPU: options.npu_nodes}
    with Cluster(options.folder, kuberay=options.kuberay, nodes=nodes, node=options.node) as cluster:
        with os.fdopen(options.report, "w") as report:
            for part, seconds in cluster.timings.items():
                print(f"{part:<16} {seconds:5.1f} s", file=report)
            print(READY, file=report, end="")
        os.read(asked_to_end, 1)


def build(options: argparse.Namespace) -> None:
    """Builds all that the tests' clusters need on this machine, or the programs named, whose paths it then
    prints."""
    if not options.programs:
        node = why_no_node() is None
        prepare(KUBERAY_VERSIONS)
        if node:
            prepare(KUBERAY_VERSIONS, node=True)
        program(HELM, "helm", print)
        if node:
            build_images()
    for name in options.programs:
        for family in FAMILIES:
            if name in family.programs:
                print(program(family, name, lambda line: print(line, file=sys.stderr)))


def _read_report(pipe: int, log: Path) -> str:
    """All that the holder writes until it closes its end, at the latest when it ends."""
    deadline, text = time.monotonic() + START_SECONDS, b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        if not (part := os.read(pipe, 4096)):
            return text.decode()
        text += part
    raise TimeoutError(f"the cluster was not ready after {START_SECONDS:.0f} s: see {log.parent}/*.log")


def _folder(text: str) -> Path:
    return Path(text).absolute()


def _program_name(name: str) -> str:
    """One of the programs there are; `choices` would refuse that none is named."""
    known = {each for family in FAMILIES for each in family.programs}
    if name not in known:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(sorted(known))}")
    return name


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster", description="A local Kubernetes.")
    commands = parser.add_subparsers(required=True)
    building = commands.add_parser("build", help="build the programs, or only those named")
    building.add_argument("programs", nargs="*", type=_program_name, metavar="PROGRAM")
    building.set_defaults(run=build)
    ending = commands.add_parser("down", help="end the cluster")
    ending.add_argument("--folder", type=_folder, default=ROOT / ".cluster")
    ending.set_defaults(run=down)
    loading = commands.add_parser("load", help="make an image usable by the node's pods")
    loading.add_argument("archive", type=Path, help="an OCI or docker archive")
    loading.add_argument("image", help="its name, as pods say it")
    loading.add_argument("--folder", type=_folder, default=ROOT / ".cluster")
    loading.set_defaults(run=load)
    for name, run, text in (
        ("up", up, "start a cluster"),
        ("run", train, "start one with a node, install the product, train the example"),
        ("hold", hold, "what `up` leaves running"),
    ):
        starting = commands.add_parser(name, help=text)
        starting.add_argument("--folder", type=_folder, default=ROOT / ".cluster")
        starting.add_argument("--kuberay", choices=KUBERAY_VERSIONS, default=KUBERAY_VERSIONS[0])
        starting.add_argument("--nodes", type=int, default=NODES[GPU], help="with 8 GPUs each")
        starting.add_argument("--npu-nodes", type=int, default=NODES[NPU], help="8 NPUs each")
        starting.add_argument("--node", action="store_true", help="this machine as a real node instead")
        starting.add_argument("--report", type=int, help=argparse.SUPPRESS)
        starting.set_defaults(run=run)
    options = parser.parse_args()
    try:
        options.run(options)
    except (CannotBuild, FolderRefused, ProcessFailed, TimeoutError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
