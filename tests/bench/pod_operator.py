"""The operator as it runs in a pod, with a token and an authority in files, and its HTTP requests made by
one of two clients: the project's own transport, or the `kubernetes` package. A program, for `operator_scale`.

    python -m tests.bench.pod_operator {own,kubernetes} FOLDER OPTIONS-OF-THE-OPERATOR

With the package, its `aio.config` reads the service account, its `ApiClient` makes each request, its
`Configuration` puts the token in, and aiohttp's session is the one that it makes. What decodes answers,
watches, tries again and counts stays the project's, so that the transports alone differ.
"""

import base64
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import aiohttp
import msgspec
import yaml

from rljob_client import transport
from rljob_client.credentials import Credentials, in_cluster
from rljob_client.transport import Call, CallObserver, Transport
from rljob_operator.controller import main as operator
from rljob_operator.controller import process

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

OWN, PACKAGE = "own", "kubernetes"


def service_account(kubeconfig: Path, folder: Path) -> None:
    """Leave in `folder` what a pod's service account has, and the server's address, of a kubeconfig with a
    token."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "token").write_text(user["token"])
    (folder / "namespace").write_text("default")
    (folder / "server").write_text(cluster["server"])
    (folder / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))


def environment(folder: Path) -> dict[str, str]:
    """What the kubelet sets in a container."""
    host, _, port = (folder / "server").read_text().removeprefix("https://").rpartition(":")
    return {"KUBERNETES_SERVICE_HOST": host.strip("[]"), "KUBERNETES_SERVICE_PORT": port}


def in_pod(folder: Path) -> "Configuration":
    """The package's configuration of a service account."""
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config.incluster_config import InClusterConfigLoader

    made = Configuration()
    # As many connections as are wanted: a lease is renewed however many requests are under way.
    made.connection_pool_maxsize = 0
    files = [str(folder / name) for name in ("token", "ca.crt")]
    InClusterConfigLoader(*files, environ=environment(folder)).load_and_set(made)
    return made


class PackageTransport(Transport):
    """The same requests, made by the `kubernetes` package."""

    def __init__(
        self,
        configuration: "Callable[[], Configuration]",
        credentials: Credentials,
        observer: CallObserver,
        user_agent: str,
    ) -> None:
        """`configuration`: the package's, with which it is known where the server is and who asks."""
        super().__init__(credentials, observer, user_agent)
        self._configuration = configuration
        self._agent = user_agent

    async def __aenter__(self) -> Self:
        # Here, so that the other client's figures are without it.
        from kubernetes.aio.client import ApiClient

        self._api = ApiClient(self._configuration())
        self._api.user_agent = self._agent
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._api.close()

    async def _request(self, call: Call, silence: float | None) -> aiohttp.ClientResponse:
        began = self._clock()
        code = "none"
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        try:
            method, url, headers, body, _ = await self._api.param_serialize(
                transport._METHODS[call.verb],
                call.path,
                query_params=list(call.query),
                header_params=headers,
                # The package encodes JSON itself, and takes no bytes for it.
                body=None if call.body is None else msgspec.json.decode(call.body),
                auth_settings=["BearerToken"],
            )
            limit = aiohttp.ClientTimeout(
                total=None, sock_connect=transport._CONNECT_SECONDS, sock_read=silence
            )
            answer = await self._api.call_api(method, url, headers, body, _request_timeout=limit)
            response: aiohttp.ClientResponse = answer.response
            code = str(response.status)
            return response
        finally:
            self._observer.api_called(call.verb, call.resource.plural, code, self._clock() - began)


def main() -> int:
    chosen, folder, *arguments = sys.argv[1:]
    where = Path(folder)
    process.find_credentials = lambda _: in_cluster(environment(where), where)  # type: ignore[assignment]
    if chosen == PACKAGE:
        process.Transport = partial(PackageTransport, partial(in_pod, where))  # type: ignore[misc, assignment]
    return operator.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
