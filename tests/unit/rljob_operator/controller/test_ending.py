"""The operator's process begins anew, and ends when it is told to, whatever it waits for. Its API server is
one whose words kopf does not understand: then kopf ends, and all begins anew."""

import asyncio
import os
import signal
import sys
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from tests.support.operator.credential_command import Command
from tests.support.operator.kubeconfig import write_kubeconfig
from tests.support.operator.operator_site import OWN_PYTHONPATH
from tools.cluster.ports import Ports

SECONDS = 60.0
"""A machine that does much else at the same time may be slow; an event ends every wait."""
LIST = {"kind": "List", "metadata": {"resourceVersion": "5"}, "items": []}


class Operator:
    """A process, and what it has logged."""

    def __init__(self, process, port):
        self._process = process
        self._url = f"http://127.0.0.1:{port}"
        self.log = ""

    async def says(self, words, times=1):
        """Read its log on, until it has said this so many times."""
        while self.log.count(words) < times:
            line = await asyncio.wait_for(self._process.stderr.readline(), SECONDS)
            assert line, f"it ended without saying {words!r} {times} times:\n{self.log}"
            self.log += line.decode()

    async def counts(self, series):
        """Wait until it serves its metrics; the value of one."""
        async with asyncio.timeout(SECONDS), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"{self._url}/metrics") as answer:
                        lines = (await answer.text()).splitlines()
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.05)  # between two instances nobody listens
                    continue
                return next((float(line.split()[-1]) for line in lines if line.startswith(series)), 0.0)

    async def ends(self, told):
        """Its exit code and the seconds that its end took, by this signal."""
        began = time.monotonic()
        self._process.send_signal(told)
        _, rest = await asyncio.wait_for(self._process.communicate(), SECONDS)
        self.log += rest.decode()
        return self._process.returncode, time.monotonic() - began


@asynccontextmanager
async def running(kubeconfig):
    ports = Ports()
    port = ports.take()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "rljob_operator.controller.main", "--host=127.0.0.1", f"--port={port}"),
        f"--kubeconfig={kubeconfig}",
        env={**os.environ, "PYTHONPATH": OWN_PYTHONPATH},
        stderr=asyncio.subprocess.PIPE,
    )
    operator = Operator(process, port)
    try:
        yield operator
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        ports.give_back()
        print(operator.log)


@asynccontextmanager
async def api_server(answer):
    """At this address; it is stopped by what comes with it."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", runner.cleanup
    finally:
        await runner.cleanup()


async def lists(request):
    return web.Response(text="") if "watch" in request.query else web.json_response(LIST)


async def silence(request):
    await asyncio.sleep(3600.0)


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
async def test_after_kopf_has_ended_while_the_api_server_is_away(tmp_path, told):
    async with api_server(lists) as (url, stop):
        config = write_kubeconfig(tmp_path / "config", {"server": url})
        async with running(config) as operator:
            await operator.says("all begins anew")
            await stop()
            await operator.says("no RLJobs yet")
            assert (await operator.ends(told))[0] == 0


async def test_between_two_instances(tmp_path):
    async with api_server(lists) as (url, _):
        config = write_kubeconfig(tmp_path / "config", {"server": url})
        async with running(config) as operator:
            # By the fifth time it waits for 8 s at least.
            await operator.says("all begins anew", times=5)
            code, seconds = await operator.ends(signal.SIGTERM)
    assert (code, operator.log.count("serving /healthz")) == (0, 5)
    assert seconds < 8.0


async def test_while_the_api_server_is_silent(tmp_path):
    async with api_server(silence) as (url, _):
        config = write_kubeconfig(tmp_path / "config", {"server": url})
        async with running(config) as operator:
            await operator.says("serving /healthz")
            code, seconds = await operator.ends(signal.SIGTERM)
    assert code == 0
    assert seconds < 25.0  # it would wait for 30 s for the answer


async def test_a_login_that_fails_when_all_begins_anew_is_tried_again(tmp_path):
    command = Command(tmp_path)
    async with api_server(lists) as (url, _):
        config = write_kubeconfig(tmp_path / "config", {"server": url}, command.answers({"token": "t"}))
        async with running(config) as operator:
            await operator.says("serving /healthz")
            command.fails("no way to the login's server")
            await operator.says("no way to the login's server", times=2)
            command.fails(None)
            await operator.says("serving /healthz", times=operator.log.count("serving /healthz") + 1)
            assert (await operator.ends(signal.SIGTERM))[0] == 0


async def test_while_a_login_is_under_way(tmp_path):
    command = Command(tmp_path)
    command.hold()
    config = write_kubeconfig(
        tmp_path / "config", {"server": "http://127.0.0.1:1"}, command.answers({"token": "t"})
    )
    async with running(config) as operator:
        await asyncio.to_thread(command.held)
        code, seconds = await operator.ends(signal.SIGTERM)
    assert code == 0
    assert seconds < 30.0  # it would wait for 60 s for the command


async def test_counters_go_on_when_all_begins_anew(tmp_path):
    """Each instance makes two requests of this kind at least, and a few more at most."""
    series, lists_of_jobs = 'rljob_api_calls_total{code="200",resource="rljobs",verb="list"}', []

    async def counted(request):
        if request.path.endswith("/rljobs") and "watch" not in request.query:
            lists_of_jobs.append(request)
        return await lists(request)

    async with api_server(counted) as (url, _):
        config = write_kubeconfig(tmp_path / "config", {"server": url})
        async with running(config) as operator:
            await operator.says("all begins anew", times=4)
            before = len(lists_of_jobs)
            assert before >= 8
            assert await operator.counts(series) >= before
