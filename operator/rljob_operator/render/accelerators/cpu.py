"""No devices: pools on plain CPUs."""

from rljob_api import Spec
from rljob_operator.render.merge import Template


class Cpu:
    """CPUs only."""

    resource: str | None = None
    ray_resource: str | None = None

    def worker(self, spec: Spec) -> Template:
        """Nothing."""
        return {}

    def hidden(self) -> list[dict[str, str]]:
        """Nothing."""
        return []
