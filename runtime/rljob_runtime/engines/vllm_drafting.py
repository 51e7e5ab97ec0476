"""vLLM's scheduler, with steps that try drafts which their ranks have on the device (`vllm_device_drafts`).

By itself vLLM gives up asynchronous scheduling, and its newer model runner, for drafts that a class of ours
makes on the CPU; and for its own on the device all steps of an engine try as many. Here vLLM is not told of
drafts when it is built. Each step is given as many places for drafts as are worth it (`step_drafts`): none
while many requests run, which is a step as vLLM makes it without drafts. What is tried in a step is known to
the ranks alone, so that the next step is scheduled before it ends.

Guarantees: what was kept of the drafts, and what a request got, is vLLM's own account; before `START` nothing
differs.

Runs in the engine core's process (`vllm_scheduler`).
"""

from typing import Any

from rljob_runtime.engines.step_drafts import StepDrafts

START = "start_drafting_on_device"
"""Name of the engine core's utility that is given the longest draft, the least chance and how many requests
may run, as `StepDrafts`. From the next step on drafts are tried."""
COUNTS = "counts_of_drafts"
"""Name of the one that answers with the drafted tokens that were checked, and those of them that were
kept."""


class Drafting:
    """What comes before a scheduler class of vLLM."""

    running: list[Any]
    num_spec_tokens: int

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._step_drafts: StepDrafts | None = None
        self._places: tuple[list[int], ...] = ([],)
        """By number of drafted tokens: as many times the token that stands for one that ranks know."""

    def start_drafting(self, draft_tokens: int, minimum_chance: float, at_most_running: int) -> None:
        """See `START`."""
        self._step_drafts = StepDrafts(draft_tokens, minimum_chance, at_most_running)
        self._places = tuple([-1] * count for count in range(draft_tokens + 1))
        # For vLLM's own statistics. Newer versions also give prompts such places, unless they decide for each
        # step how many there are: by this table, which is overruled here.
        self.num_spec_tokens = draft_tokens
        if hasattr(self, "dynamic_sd_lookup"):
            self.dynamic_sd_lookup = [draft_tokens] * (self.max_num_running_reqs + 1)  # type: ignore[attr-defined]

    def draft_counts(self) -> tuple[int, int]:
        """See `COUNTS`."""
        drafts = self._step_drafts
        return (0, 0) if drafts is None else (drafts.tried, drafts.kept)

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """Called by vLLM before each step."""
        if self._step_drafts is not None:
            places = self._places[self._step_drafts.count(len(self.running))]
            for request in self.running:
                # One that computes its prompt draws nothing that drafts could follow.
                request.spec_token_ids = [] if request.is_prefill_chunk else places
        return super().schedule(*arguments, **named)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Called by vLLM after each step."""
        if self._step_drafts is not None and scheduler_output.scheduled_spec_decode_tokens:
            drawn, rows = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
            for name, tried in scheduler_output.scheduled_spec_decode_tokens.items():
                if tokens := drawn[rows[name]]:
                    self._step_drafts.tell(len(tried), len(tokens) - 1)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]


def start(core: Any, draft_tokens: int, minimum_chance: float, at_most_running: int) -> None:
    """The utility `START`."""
    core.scheduler.start_drafting(draft_tokens, minimum_chance, at_most_running)


def counts(core: Any) -> tuple[int, int]:
    """The utility `COUNTS`."""
    got: tuple[int, int] = core.scheduler.draft_counts()
    return got
