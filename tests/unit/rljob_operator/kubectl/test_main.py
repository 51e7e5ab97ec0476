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


def test_a_kubeconfig_that_cannot_be_used_is_one_line(tmp_path, capsys):
    user = {"auth-provider": {"name": "azure"}}
    path = write_kubeconfig(tmp_path / "config", user=user)
    assert main(["status", "math", "--kubeconfig", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kubectl rljob: {path}: user 'u': auth-provider 'azure' is not supported")
