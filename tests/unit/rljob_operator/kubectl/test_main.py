"""`kubectl rljob` against servers that have no answer for it."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rljob_operator.kubectl.main import main
from tests.support.operator.kubeconfig import write_kubeconfig


@asynccontextmanager
async def serving(status, document):
    async def answer(request):
        return web.json_response(document, status=status)

    runner = web.AppRunner(web.Application(), access_log=None)
    runner.app.router.add_route("*", "/{path:.*}", answer)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


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


def test_a_kubeconfig_that_cannot_be_used_is_one_line(tmp_path, capsys):
    user = {"auth-provider": {"name": "azure"}}
    path = write_kubeconfig(tmp_path / "config", user=user)
    assert main(["status", "math", "--kubeconfig", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kubectl rljob: {path}: user 'u': auth-provider 'azure' is not supported")
