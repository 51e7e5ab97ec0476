"""ConfigMaps for tests of the API client."""

from typing import Any

from rljob_client.resources import CONFIG_MAPS
from rljob_operator.kube.client import ApiClient


def config_map(namespace: str, name: str = "a", **data: str) -> dict[str, Any]:
    """One of this data."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name},
        "data": data,
    }


async def data_of(client: ApiClient, namespace: str, name: str = "a") -> dict[str, str]:
    """The data of the one that is stored."""
    found: dict[str, str] = (await client.get(CONFIG_MAPS, namespace, name, dict))["data"]
    return found
