"""When the definitions of resources count as served."""

from pathlib import Path
from typing import Any, cast

import pytest

from tools.cluster import custom_resources
from tools.cluster.api import Api, ApiError
from tools.cluster.custom_resources import wait_until_served

RESOURCE = "/apis/ray.io/v1/rayjobs?limit=1"


class Server:
    """Serves a definition bit by bit: of each of `stages`, whether its objects can be read, and which
    resources of its group are listed."""

    def __init__(self, stages: list[tuple[bool, list[str]]]) -> None:
        self.stages = stages

    def request(self, _: str, path: str) -> Any:
        readable, listed = self.stages[0]
        if path == "/apis/ray.io":
            return {"preferredVersion": {"groupVersion": "ray.io/v1"}}
        if path == RESOURCE and not readable:
            raise ApiError("GET", path, 404, b"{}")
        return {"resources": [{"name": name} for name in listed]}

    def check(self) -> None:
        self.stages.pop(0)


def test_a_definition_is_served_once_its_resource_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads a list with some of a group's resources keeps it."""
    monkeypatch.setattr(custom_resources, "RETRY_SECONDS", 0.0)
    file = tmp_path / "rayjobs.yaml"
    file.write_text("kind: CustomResourceDefinition\nmetadata:\n  name: rayjobs.ray.io\n")
    whole = (True, ["rayclusters", "rayjobs"])
    server = Server([(False, []), (True, ["rayclusters"]), whole])
    wait_until_served(cast(Api, server), [file])
    assert server.stages == [whole]
