"""Probes and metrics over HTTP."""

import aiohttp

from rljob_operator.kube.http import HealthServer
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


def test_each_has_its_own_registry():
    one, other = OperatorMetrics(), OperatorMetrics()
    one.leader.set(1)
    assert b"rljob_leader 0.0" in other.render()
