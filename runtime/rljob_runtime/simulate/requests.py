"""The simulated requests: how long each is, and how far. They are numbered uid * samples + sample. Pure."""

from rljob_runtime.routing.requests import RequestKey
from rljob_runtime.simulate.workload import Workload


class Requests:
    """A table with a row for each response."""

    def __init__(self, workload: Workload) -> None:
        self.samples = workload.samples
        self.waits = workload.waits
        self.lengths: list[int] = workload.lengths.ravel().tolist()
        self.prompts: list[int] = workload.prompt_tokens.repeat(workload.samples).tolist()
        self.tokens = [0] * len(self.lengths)
        """Response tokens; of one that runs, those when it began to."""
        self.cached = [False] * len(self.lengths)
        """Whether its KV is on the engine where it is to run, so that nothing is prefilled."""

    def number(self, key: RequestKey) -> int:
        return key.uid * self.samples + key.sample

    def key(self, number: int) -> RequestKey:
        return RequestKey(*divmod(number, self.samples))

    def kv(self, number: int) -> int:
        """KV tokens of a request that does not run."""
        return self.prompts[number] + self.tokens[number]

    def next_stop(self, number: int) -> int:
        """Tokens with which it ends or calls a tool."""
        length = self.lengths[number]
        if self.waits is None:
            return length
        every = self.waits.every_tokens
        return min(length, (self.tokens[number] // every + 1) * every)
