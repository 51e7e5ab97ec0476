"""Training an adapter in place of all weights."""

from pydantic import Field

from rljob_api.base import Model, Rule


class Adapter(Model):
    """Low-rank adaptation (LoRA, arXiv:2106.09685): the model's weights stay as they are, and to the weight
    of each chosen linear layer alpha / rank * B A is added, where A has shape (rank, inputs) and B (outputs,
    rank). A and B alone are trained, kept in checkpoints and brought to the engines."""

    rank: int = Field(default=16, ge=1, le=512)
    """Rows of A and columns of B."""
    alpha: int = Field(default=32, ge=1, le=65536)
    """What is added is multiplied by alpha / rank."""
    target_modules: list[str] | None = Field(default=None, min_length=1, max_length=64)
    """Names of the linear layers that get an adapter, as peft takes them: q_proj stands for each layer of
    that name in the whole model, self_attn.q_proj for those in a module self_attn. Default: all linear layers
    of the decoder; not the embeddings, nor the output head. Experts, what chooses among them, and layers that
    have the name of an expert's get none."""

    @property
    def words(self) -> str:
        """What tells one adapter from another, for people."""
        layers = ", ".join(self.target_modules) if self.target_modules is not None else "all linear layers"
        return f"rank {self.rank}, alpha {self.alpha}, for {layers}"


ADAPTER_RULES: tuple[Rule, ...] = (
    Rule(
        message="rollout.engine must be vllm with adapter",
        cel="!has(self.adapter) || !has(self.rollout.engine) || has(self.rollout.engine.vllm)",
        holds=lambda self: self.adapter is None or self.rollout.engine.vllm is not None,
        fields=("rollout.engine",),
    ),
    Rule(
        message="rollout.engine.vllm.speculation must not be set with adapter",
        cel="!has(self.adapter) || !has(self.rollout.engine) || !has(self.rollout.engine.vllm)"
        " || !has(self.rollout.engine.vllm.speculation)",
        holds=lambda self: (
            self.adapter is None
            or self.rollout.engine.vllm is None
            or self.rollout.engine.vllm.speculation is None
        ),
        fields=("rollout.engine.vllm.speculation",),
    ),
    Rule(
        message="async.weightSync.transport must be auto, shm or tcp with adapter: an adapter is small, and"
        " is stored for whoever comes",
        # Where weightSync is not set, its default has transport auto.
        cel="!has(self.adapter) || !has(self.async.weightSync)"
        " || self.async.weightSync.transport in ['auto', 'shm', 'tcp']",
        holds=lambda self: (
            self.adapter is None or self.async_.weight_sync.transport in ("auto", "shm", "tcp")
        ),
        fields=("async.weightSync.transport",),
    ),
    Rule(
        message="async.weightSync.push.inFlight must be abort with adapter and async.staleTokens: mask: a"
        " response that is not taken out is finished with the adapter that it began with, and has no fresher"
        " tokens",
        cel="!has(self.adapter) || self.async.staleTokens == 'wait'"
        " || (has(self.async.weightSync) && has(self.async.weightSync.push)"
        " && self.async.weightSync.push.inFlight == 'abort')",
        holds=lambda self: (
            self.adapter is None
            or self.async_.stale_tokens == "wait"
            or (
                self.async_.weight_sync.push is not None and self.async_.weight_sync.push.in_flight == "abort"
            )
        ),
        fields=("async.weightSync.push.inFlight", "async.staleTokens"),
    ),
    Rule(
        message="async.weightSync.push.kvAfterUpdate must be recompute with adapter: no request is frozen,"
        " and each is finished with the adapter that it began with",
        cel="!has(self.adapter) || !has(self.async.weightSync) || !has(self.async.weightSync.push)"
        " || self.async.weightSync.push.kvAfterUpdate == 'recompute'",
        holds=lambda self: (
            self.adapter is None
            or self.async_.weight_sync.push is None
            or self.async_.weight_sync.push.kv_after_update == "recompute"
        ),
        fields=("async.weightSync.push.kvAfterUpdate",),
    ),
)
"""What of `training` an adapter does not go with."""
