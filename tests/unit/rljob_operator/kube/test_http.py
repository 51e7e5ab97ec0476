"""Probes and metrics over HTTP."""

import aiohttp
import pytest

from rljob_operator.kube.http import CannotListen, HealthServer
from rljob_operator.metrics import OperatorMetrics


async def test_probes_say_what_is_wrong_and_metrics_are_rendered():
    troubles = {"alive": None, "ready": "pods: not listed yet"}
    metrics = OperatorMetrics()
    metrics.api_calls.labels("get", "pods", "200").inc(3)
    metrics.leader.set(1)
    server = HealthServer(
        metrics, lambda: troubles["alive"], lambda: troubles["ready"], port=0, host="127.0.0.1"
    )
    async with server, aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

        async def get(path):
            async with session.get(path) as response:
                return response.status, await response.text()

        assert await get("/healthz") == (200, "ok")
        assert await get("/readyz") == (503, "pods: not listed yet")
        troubles.update(alive="the queue hangs", ready=None)
        assert await get("/healthz") == (503, "the queue hangs")
        assert await get("/readyz") == (200, "ok")
        status, text = await get("/metrics")
        assert status == 200
        assert 'rljob_api_calls_total{code="200",resource="pods",verb="get"} 3.0' in text
        assert "rljob_leader 1.0" in text
        assert "_created" not in text
        assert (await get("/debug"))[0] == 404


async def test_where_it_cannot_listen():
    def on(port, host):
        return HealthServer(OperatorMetrics(), lambda: None, lambda: None, port, host)

    async with on(0, "127.0.0.1") as server:
        taken = f"cannot listen on port {server.port} of 127.0.0.1: Address already in use; "
        with pytest.raises(CannotListen, match=taken):
            await on(server.port, "127.0.0.1").__aenter__()
    # An address that is set aside for documentation: no machine has it.
    with pytest.raises(
        CannotListen, match=r"of 192\.0\.2\.1: Cannot assign requested address; .* and --host"
    ):
        await on(0, "192.0.2.1").__aenter__()
    with pytest.raises(CannotListen, match=r"of no\.such\.host\.invalid: \w+"):
        await on(0, "no.such.host.invalid").__aenter__()


def test_each_has_its_own_registry():
    one, other = OperatorMetrics(), OperatorMetrics()
    one.leader.set(1)
    assert b"rljob_leader 0.0" in other.render()
