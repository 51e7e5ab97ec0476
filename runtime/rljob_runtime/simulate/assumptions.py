"""What a simulation takes for granted about a job that has not run: lengths, costs of engines and trainer.

The defaults describe a model of 8 B parameters on one H200 for each engine and are assumptions, fitted to no
measurement; `rljob trace fit` prints what a run measured in this form. Pure.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from rljob_api.base import Model, Rule


class Lengths(Model):
    """Lognormal lengths of responses, where no recorded lengths are given."""

    mean: float | None = Field(default=None, ge=1, le=1048576)
    """Mean response, in tokens. Default: a quarter of rollout.maxResponseTokens."""
    between_prompts: float = Field(default=0.6, ge=0, le=4)
    """Standard deviation of the logarithm of lengths, from prompt to prompt."""
    within_prompt: float = Field(default=0.4, ge=0, le=4)
    """The same among the responses to one prompt."""
    order: float = Field(default=0.0, ge=0, lt=1)
    """Correlation of neighbouring prompts: above 0 where the data are sorted by topic or difficulty and not
    shuffled."""
    prompt_tokens: int | None = Field(default=None, ge=1, le=1048576)
    """Length of every prompt. Default: half of data.maxPromptTokens."""


class EngineCost(Model):
    """What an engine's work costs."""

    fixed_seconds: float = Field(default=0.008, gt=0, le=100)
    """Of each decode step, whatever runs."""
    seconds_per_request: float = Field(default=2e-5, ge=0, le=10)
    """Of a decode step, for each request, padded to the captured graph that runs them."""
    seconds_per_kv_token: float = Field(default=4.3e-8, ge=0, le=1)
    """Of a decode step, for each token in the KV cache of the running requests."""
    seconds_per_prefill_token: float = Field(default=5e-5, ge=0, le=1)
    """For each token of a prompt, and of a response that goes on on another engine."""
    graphs: list[Annotated[int, Field(le=1048576)]] | None = Field(default=None, max_length=4096)
    """Batch sizes with a captured graph, ascending. Default: those of the job's engines
    (rollout.engine.vllm.captureSizes)."""
    kv_tokens: int | None = Field(default=750_000, ge=1, le=1_000_000_000_000)
    """Tokens that the KV cache holds. null: as many as are needed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="graphs must be ascending numbers of requests, from 1",
            cel="true",
            holds=lambda self: (
                self.graphs is None
                or (self.graphs == sorted(set(self.graphs)) and all(graph >= 1 for graph in self.graphs))
            ),
            fields=("graphs",),
        ),
    )


class Engines(Model):
    """The engines of both pools."""

    fast: EngineCost = EngineCost()
    """An engine of the fast pool."""
    heavy: EngineCost | None = None
    """An engine of the heavy pool. Default: as a fast one; with k times its accelerators k^0.7 times as fast,
    with k times its KV cache."""
    lockstep: bool = False
    """Whether the engines of a pool share each decode step, as the data-parallel ranks of an expert-parallel
    model do."""
    admission_seconds: float = Field(default=0.0, ge=0, le=100)
    """What a step with a prefill takes besides the prefill: without a captured graph, or in lockstep."""


class Moves(Model):
    """How a running response gets to another engine."""

    copy_bytes_per_second: float | None = Field(default=None, gt=0)
    """Bandwidth at which its KV cache is copied. Default: it is not copied, and computed again."""
    kv_bytes_per_token: float = Field(default=147_456, gt=0)
    """Size of the KV cache of a token."""


class TrainerCost(Model):
    """What a training step costs."""

    seconds_per_step: float = Field(default=1.0, ge=0, le=1e6)
    """Whatever it trains."""
    seconds_per_token: float = Field(default=1.2e-4, ge=0, le=100)
    """Of one accelerator, for each token of prompts and responses; the ranks share the tokens,
    as far as an optimizer update has samples for them."""


class ToolUse(Model):
    """Responses that call tools."""

    every_tokens: int = Field(ge=1, le=1048576)
    """Tokens between two calls."""
    seconds: float = Field(gt=0, le=1e6)
    """How long a response waits for its tool, its KV cache kept."""


class Assumptions(Model):
    """All of it. What is not said has its default: `{}` says nothing."""

    lengths: Lengths = Lengths()
    """Of responses and prompts."""
    engines: Engines = Engines()
    """What engines cost."""
    moves: Moves = Moves()
    """What moving a response costs."""
    trainer: TrainerCost = TrainerCost()
    """What training costs."""
    weight_publish_seconds: float = Field(default=0.0, ge=0, le=1e6)
    """How long the trainer stands still after a step to publish a version of the weights. Default: nothing,
    for weightSyncSeconds has all of an update whose parts nobody measured."""
    weight_delivery_seconds: float = Field(default=0.0, ge=0, le=1e6)
    """From then until engines begin to load it, as it is written and brought to them; they generate meanwhile
    with the version before. Default: nothing, for the same reason."""
    weight_sync_seconds: float = Field(default=2.0, ge=0, le=1e6)
    """How long engines stand still to load it."""
    trainer_sends_weights: bool | None = None
    """Whether the trainer stands still until engines have loaded a version, as with the transports nccl and
    hccl; false: it trains once it has published one, and publishes the next when engines have loaded that.
    Default: false where weightSync.transport is shm or tcp, and where auto never chooses another."""
    tools: ToolUse | None = None
    """Tool calls. Default: none."""
