"""`kubectl rljob` against servers that have no answer for it."""

import asyncio
import io
import json
import os
import pty
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rljob_operator.kubectl.main import main
from tests.support.interrupts import pressed_at_import
from tests.support.operator.kubeconfig import write_kubeconfig
from tests.support.operator.operator_site import OWN_PYTHONPATH


@asynccontextmanager
async def answering(answer):
    runner = web.AppRunner(web.Application(), access_log=None)
    runner.app.router.add_route("*", "/{path:.*}", answer)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def serving(status, document):
    async def answer(request):
        return web.json_response(document, status=status)

    return answering(answer)


@pytest.mark.parametrize(
    ("details", "says"),
    [
        ({"name": "math"}, "there is no RLJob math in namespace team"),
        ({}, "the API server does not serve this type: install its CustomResourceDefinition"),
    ],
)
async def test_what_is_missing_is_named(tmp_path, capsys, details, says):
    missing = {"kind": "Status", "reason": "NotFound", "message": "not found", "details": details}
    async with serving(404, missing) as server:
        path = write_kubeconfig(tmp_path / "config", {"server": server})
        assert await asyncio.to_thread(main, ["status", "math", "--kubeconfig", str(path)]) == 1
    assert says in capsys.readouterr().err


def _head(name, created, owner):
    labels = {"rljob.dev/job": "math", "rljob.dev/attempt": "1", "ray.io/cluster": "math-1"}
    metadata = {"name": name, "creationTimestamp": created, "labels": labels}
    return {"metadata": {**metadata, "ownerReferences": [{**owner, "controller": True}]}}


async def test_logs_are_those_of_a_head_that_kuberay_made(tmp_path, monkeypatch):
    """Somebody else's pod may have the labels of one, and be newer."""
    mine = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "math-1", "uid": "c"}
    theirs = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "math-1", "uid": "r"}
    document = {
        "metadata": {"name": "math"},
        "status": {"attempt": 1},
        "items": [
            _head("math-1-head-a", "2026-11-21T14:02:00Z", mine),
            _head("stray", "2026-11-21T15:02:00Z", theirs),
        ],
    }
    started = []
    monkeypatch.setattr("os.execvp", lambda program, command: started.append(command))
    async with serving(200, document) as server:
        path = write_kubeconfig(tmp_path / "config", {"server": server})
        assert await asyncio.to_thread(main, ["logs", "math", "-n", "team", "--kubeconfig", str(path)]) == 0
    assert started[0][:7] == ["kubectl", "logs", "-n", "team", "math-1-head-a", "-c", "driver"]


RAY_CLUSTER = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "math-1", "uid": "c"}
RUNNING = {
    "metadata": {"name": "math"},
    "status": {"attempt": 1},
    "items": [_head("math-1-head-a", "2026-11-21T14:02:00Z", RAY_CLUSTER)],
}


async def test_a_kubectl_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    async with serving(200, RUNNING) as server:
        path = write_kubeconfig(tmp_path / "config", {"server": server})
        assert await asyncio.to_thread(main, ["logs", "math", "--kubeconfig", str(path)]) == 1
    assert capsys.readouterr().err == "kubectl rljob: kubectl cannot be run: No such file or directory\n"


@pytest.mark.parametrize(
    ("terminal", "printed"), [(True, b"step 1\r\nab\r\n"), (False, b"step 1\r\na\x1b[2Jb\n")]
)
async def test_a_log_acts_on_no_terminal_and_is_as_it_was_in_a_pipe(tmp_path, terminal, printed):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\nprintf 'step 1\\r\\na\\033[2Jb\\n'; exit 3\n")
    kubectl.chmod(0o755)
    reads, writes = pty.openpty() if terminal else os.pipe()
    try:
        async with serving(200, RUNNING) as server:
            path = write_kubeconfig(tmp_path / "config", {"server": server})
            command = ["-m", "rljob_operator.kubectl.main", "logs", "math", "--kubeconfig", str(path)]
            environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": OWN_PYTHONPATH}
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, stdout=writes, env=environment
            )
            async with asyncio.timeout(60):
                assert await process.wait() == 3
        assert os.read(reads, 1000) == printed
    finally:
        os.close(reads)
        os.close(writes)


@pytest.mark.parametrize("command", ["status", "top"])
async def test_whoever_has_read_enough_is_told_of_no_error(tmp_path, command):
    reads, writes = os.pipe()
    os.close(reads)
    ended = {**RUNNING, "status": {**RUNNING.get("status", {}), "phase": "Complete"}}
    async with serving(200, ended) as server:
        path = write_kubeconfig(tmp_path / "config", {"server": server})
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "rljob_operator.kubectl.main",
                command,
                "math",
                "--kubeconfig",
                str(path),
            ),
            stdout=writes,
            stderr=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": OWN_PYTHONPATH},
        )
        os.close(writes)
        async with asyncio.timeout(60):
            _, said = await process.communicate()
    assert (process.returncode, said) == (0, b"")


def test_a_kubeconfig_that_cannot_be_used_is_one_line(tmp_path, capsys):
    user = {"auth-provider": {"name": "azure"}}
    path = write_kubeconfig(tmp_path / "config", user=user)
    assert main(["status", "math", "--kubeconfig", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kubectl rljob: {path}: user 'u': auth-provider 'azure' is not supported")


@pytest.mark.parametrize("command", ["status", "logs", "top"])
def test_an_empty_name_is_refused(command, tmp_path, capsys):
    """As that of a variable that is not set: the API server would answer with all jobs."""
    path = write_kubeconfig(tmp_path / "config", {"server": "http://127.0.0.1:1"})
    with pytest.raises(SystemExit) as ended:
        main([command, "", "--kubeconfig", str(path)])
    assert ended.value.code == 2
    assert "argument name: the RLJob's name is empty" in capsys.readouterr().err


async def test_in_a_pod_it_speaks_to_kubectl_s_server(tmp_path, capsys, monkeypatch):
    missing = {"kind": "Status", "reason": "NotFound", "message": "not found", "details": {"name": "math"}}
    (tmp_path / ".kube").mkdir()
    for name, value in {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.96.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    async with serving(404, missing) as server:
        write_kubeconfig(tmp_path / ".kube" / "config", {"server": server})
        # An empty option is none, as for kubectl.
        assert await asyncio.to_thread(main, ["status", "math", "--kubeconfig", "", "--context", ""]) == 1
    assert "there is no RLJob math in namespace team" in capsys.readouterr().err


class Latin1Terminal(io.TextIOWrapper):
    """A terminal that has no characters but those of Western Europe."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="latin-1")

    def isatty(self):
        return True

    def shown(self):
        self.flush()
        return self.buffer.getvalue()


COMPLETE = {
    "type": "Complete",
    "status": "True",
    "reason": "Succeeded",
    "message": "",
    "lastTransitionTime": "2026-11-21T14:02:00Z",
}
TRAINING = {"step": 1, "totalSteps": 2, "weightVersion": 1, "queueDepth": 0, "tokensPerSecond": 1}


@pytest.mark.parametrize(
    ("command", "shows"),
    [("status", b"step 1/2   ????"), ("top", b"step 1/2   ????"), ("logs", b"caf\xe9 ? 3\n")],
)
async def test_what_a_terminal_has_no_character_for_is_shown_as_a_question_mark(
    tmp_path, monkeypatch, command, shows
):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\nprintf 'café → 3\\n'\n")
    kubectl.chmod(0o755)
    terminal = Latin1Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    status = {"attempt": 1, "training": TRAINING, "conditions": [COMPLETE]}
    async with serving(200, {**RUNNING, "status": status}) as server:
        path = write_kubeconfig(tmp_path / "config", {"server": server})
        assert await asyncio.to_thread(main, [command, "math", "--kubeconfig", str(path)]) == 0
    assert shows in terminal.shown()


@pytest.mark.parametrize(
    ("details", "says"),
    [({"name": "math"}, "RLJob math was deleted"), ({}, "the API server does not serve this type")],
)
async def test_top_tells_a_deleted_job_from_a_type_that_is_no_longer_served(tmp_path, capsys, details, says):
    missing = {"kind": "Status", "reason": "NotFound", "message": "not found", "details": details}
    asked = []

    async def answer(request):
        if "watch" in request.query:
            return web.Response()
        asked.append(request.path)
        if len(asked) == 1:
            return web.json_response({"metadata": {"name": "math"}})
        return web.json_response(missing, status=404)

    async with answering(answer) as server:
        path = write_kubeconfig(tmp_path / "config", {"server": server})
        assert await asyncio.to_thread(main, ["top", "math", "--kubeconfig", str(path)]) == 1
    assert says in capsys.readouterr().err


async def test_top_goes_on_after_a_watch_that_was_cut_off(tmp_path, capsys):
    """As by a load balancer that closes what is idle, or while the API server starts again."""
    watches = []

    async def answer(request):
        if "watch" not in request.query:
            return web.json_response({"metadata": {"name": "math"}, "status": RUNNING["status"]})
        watches.append(request.path)
        if len(watches) == 1:
            request.transport.abort()
        if len(watches) <= 2:
            return web.json_response({"kind": "Status", "reason": "ServiceUnavailable"}, status=503)
        done = {**RUNNING, "status": {"attempt": 1, "phase": "Complete", "conditions": [COMPLETE]}}
        return web.Response(body=json.dumps({"type": "MODIFIED", "object": done}).encode() + b"\n")

    async with answering(answer) as server:
        path = write_kubeconfig(tmp_path / "config", {"server": server})
        assert await asyncio.to_thread(main, ["top", "math", "--kubeconfig", str(path)]) == 0
    assert len(watches) == 3
    assert "Complete" in capsys.readouterr().out


@pytest.mark.parametrize("module", ["rljob_operator.kubectl.command", "aiohttp"])
def test_an_interrupt_while_it_is_imported_is_no_traceback(module, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "rljob_operator.kubectl.main", "status", "math"],
        env=pressed_at_import(tmp_path, module), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_an_interrupt_that_is_ignored_stays_so(tmp_path):
    """As of a command that a script runs in the background."""
    script = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    script += "from rljob_operator.kubectl.main import main\n"
    script += "try:\n    main(['--help'])\nfinally:\n    print(signal.getsignal(signal.SIGINT).name)\n"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "SIG_IGN"
