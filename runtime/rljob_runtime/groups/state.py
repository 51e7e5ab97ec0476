"""Where a job stands, as a checkpoint keeps it, and what its groups are made of. Pure."""

from dataclasses import dataclass, field

import msgspec

from rljob_api.rollout import Speculation
from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.forced_lengths import ForcedLengths
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.groups.curriculum import CurriculumState
from rljob_runtime.groups.filter import GroupFilter
from rljob_runtime.groups.ledger import Ledger


@dataclass(frozen=True)
class RolloutSettings:
    """What the rollouter needs of the RLJob."""

    samples_per_prompt: int
    max_response_tokens: int
    seed: int
    forced: ForcedLengths | None = None
    """The length of each response, where it is given; else the model ends its responses."""
    teacher: str | None = None
    """The model that a server has, by whose log-probabilities responses are trained; None without one."""
    filter: GroupFilter = field(default_factory=GroupFilter)
    """Which groups are to be refused."""
    speculation: Speculation | None = None
    """How the engines draft; None where they do not."""

    def most_tokens(self, uid: int, index: int) -> int:
        """Most tokens of response `index` of group `uid`; where lengths are given, exactly so many."""
        return self.max_response_tokens if self.forced is None else self.forced.of(uid, index)


class JobState(msgspec.Struct):
    """What a checkpoint holds beside the model: where the job stands."""

    step: int
    """Steps done."""
    ledger: Ledger
    waiting: list[bytes]
    """Finished groups that wait to be trained, in wire form."""
    counts: GroupCounts
    data: DataFingerprint
    """Fingerprint of the prompts: what the uids mean."""
    steps_per_version: int | None = None
    """Steps to a weight version when the waiting groups were dispatched; None in checkpoints that do not say
    it."""
    curriculum: CurriculumState | None = None
    """None where the job has no curriculum."""
    adapter: str | None = None
    """The adapter that is trained, in words; None where the whole model is."""
    teacher: str | None = None
    """The served model whose log-probabilities the waiting groups have; None where they have none."""
    began_with: str | None = None
    """A digest of the weights that the run began with, to which an adapter belongs, and which are the
    reference of a KL penalty; None in checkpoints that do not say it."""
