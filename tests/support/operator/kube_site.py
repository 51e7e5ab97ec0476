"""The operator's API client against the tests' cluster, directly or through a proxy that does harm."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rljob_client.backoff import Backoff
from rljob_client.client import ClientSettings
from rljob_client.credentials import Credentials, find_credentials
from rljob_client.retry import RetryPolicy
from rljob_client.transport import Transport
from rljob_operator.kube.client import ApiClient
from rljob_operator.metrics import OperatorMetrics
from tests.support.operator.fault_proxy import FaultProxy

RETRY = RetryPolicy(attempts=4, backoff=Backoff(base_seconds=0.05, cap_seconds=0.2))


@dataclass
class Site:
    """A client and what it is made of."""

    transport: Transport
    metrics: OperatorMetrics
    client: ApiClient

    def other(self, field_manager: str) -> ApiClient:
        """A client of the same server with another name."""
        return ApiClient(self.transport, self.metrics, settings(field_manager), Random(0))

    def measured(self, name: str, **labels: str) -> float:
        """A metric's value; 0 where there is none with these labels."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def calls(self, verb: str, resource: str, code: str) -> float:
        """Requests that got this answer."""
        return self.measured("rljob_api_calls_total", verb=verb, resource=resource, code=code)


@dataclass
class ProxiedSite(Site):
    """A client whose requests pass a proxy that does harm."""

    proxy: FaultProxy = field(kw_only=True)


def settings(field_manager: str = "rljob-operator", timeout_seconds: float = 30.0) -> ClientSettings:
    return ClientSettings(field_manager, timeout_seconds, RETRY)


@asynccontextmanager
async def site(credentials: Credentials, timeout_seconds: float = 30.0) -> AsyncIterator[Site]:
    """A client with these credentials."""
    metrics = OperatorMetrics()
    async with Transport(credentials, metrics, "test") as transport:
        made = settings(timeout_seconds=timeout_seconds)
        yield Site(transport, metrics, ApiClient(transport, metrics, made, Random(0)))


@asynccontextmanager
async def proxied_site(kubeconfig: Path, timeout_seconds: float = 30.0) -> AsyncIterator[ProxiedSite]:
    """A client whose requests pass a proxy."""
    direct = find_credentials(kubeconfig)
    assert direct.tls is not None
    async with FaultProxy(direct.server, direct.tls) as proxy:
        through = Credentials(proxy.url, None, direct.authorization, direct.namespace)
        async with site(through, timeout_seconds) as made:
            yield ProxiedSite(made.transport, made.metrics, made.client, proxy=proxy)
