"""Where each engine gets a version from.

Guarantees: where versions are stored every engine gets the same reference; with a collective transport all
engines and the trainer get one meeting place and ranks of their own, the same as for the version before as
long as the engines and the trainer's processes are the same, so that the group is joined once. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.weights.collective import Rendezvous
from rljob_runtime.weights.transport import STORED


@dataclass
class WeightSources:
    """Remembers the group that was joined last."""

    address: str = ""
    """Where its members met, "host:port"."""
    members: tuple[object, ...] = field(default=())
    """The start of its sender, then its engines, in the order of their ranks."""

    def refs(
        self, ref: WeightRef, engines: Sequence[object], devices: Sequence[int], start: int = 0
    ) -> list[WeightRef]:
        """For each of `engines` its reference; `devices` says how many accelerators each has, `start` how
        often the processes of the sender were started.

        The location of a collective `ref` is a free address "host:port" on the trainer's node.
        """
        if ref.transport in STORED:
            return [ref] * len(engines)
        if not engines:
            return []
        # Each version comes with a free address; it is used only where a new group has to meet.
        if self.members != (start, *engines):
            self.address, self.members = ref.location, (start, *engines)
        host, port = self.address.rsplit(":", 1)
        # Rank 0 is the trainer's; each engine has as many ranks as accelerators, one after the other.
        world_size, offset, refs = 1 + sum(devices), 1, []
        for count in devices:
            refs.append(structs.replace(ref, location=str(Rendezvous(host, int(port), world_size, offset))))
            offset += count
        return refs

    def forget(self) -> None:
        """The group is of no use any more: the next version is sent in a new one."""
        self.address, self.members = "", ()
