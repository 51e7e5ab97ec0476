"""The learning algorithm: advantages, policy loss, regularisers, optimizer."""

from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from rljob_api.base import FUNCTION, FUNCTION_LENGTH, Model, OneOf, Rule, form

Aggregation: TypeAlias = Literal["token-mean", "sequence-mean", "fixed-length"]


class Clip(Model):
    """PPO's clipped ratio against the engines' log-probabilities (verl's bypass mode)."""

    low: float = Field(default=0.2, gt=0, lt=1)
    """Ratios below 1 - low are clipped."""
    high: float = Field(default=0.2, gt=0, le=10)
    """Ratios above 1 + high are clipped (DAPO's clip-higher: 0.28)."""
    dual: float | None = Field(default=3.0, gt=1, le=100)
    """Dual clip: the loss of a sample with negative advantage is at most dual * |advantage|. null is off."""


class ImportanceWeights(Model):
    """Weights that correct for the difference between the engines' policy and the proximal one, recomputed by
    the trainer when a step begins: proximal / engine."""

    weight_cap: float = Field(default=2.0, gt=0, le=1000)
    """Largest importance weight."""
    weight_floor: float = Field(default=0.0, ge=0, le=1)
    """Smallest importance weight."""
    outside: Literal["truncate", "mask"] = "truncate"
    """What happens to a token whose weight leaves [weightFloor, weightCap]: the weight is truncated to the
    bound (TIS), or the token is left out of the loss (IcePop; with level sequence, the whole response)."""
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or the product over the response."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="weightFloor must not be above weightCap",
            cel="self.weightFloor <= self.weightCap",
            holds=lambda self: self.weight_floor <= self.weight_cap,
            fields=("weightFloor", "weightCap"),
        ),
    )


class DecoupledClip(ImportanceWeights, Clip):
    """Decoupled PPO (AReaL, arXiv:2505.24298): the ratio is taken against the proximal policy, recomputed
    by the trainer when a step begins; the proximal-to-engine ratio becomes an importance weight. With one
    batch per step this is PPO with truncated importance sampling."""


class TruncatedReinforce(Model):
    """REINFORCE with truncated importance sampling: min(pi / pi_engine, cap), detached, weighs the
    log-probability gradient."""

    weight_cap: float = Field(default=2.0, gt=0, le=1000)
    """Largest importance weight."""


class Gspo(Model):
    """Group sequence policy optimization (arXiv:2507.18071): PPO's clip of one ratio for each response, the
    geometric mean of its tokens' ratios. The paper's mean over responses is aggregation: sequence-mean."""

    low: float = Field(default=3e-4, gt=0, lt=1)
    """Ratios below 1 - low are clipped. A response's mean ratio stays far closer to 1 than a token's."""
    high: float = Field(default=4e-4, gt=0, le=10)
    """Ratios above 1 + high are clipped."""
    dual: float | None = Field(default=None, gt=1, le=100)
    """Dual clip: the loss of a sample with negative advantage is at most dual * |advantage|. Default: off."""


class Cispo(Model):
    """CISPO (MiniMax-M1, arXiv:2506.13585): the ratio, within bounds and detached, weighs the log-probability
    gradient, so that no token loses its gradient to clipping."""

    weight_cap: float = Field(default=5.0, ge=1, le=1000)
    """Largest weight: the ratio itself, as TRL's epsilon_high; verl's clip_ratio_high is this less 1."""
    weight_floor: float = Field(default=0.0, ge=0, le=1)
    """Smallest weight: the ratio itself; verl's clip_ratio_low is 1 less this."""


class DppoTv(Model):
    """Divergence PPO by total variation (arXiv:2602.04879): a token whose probability has moved further than
    allowed, and would be moved on, is left out; the ratio, truncated and detached, weighs the others."""

    low: float = Field(default=0.2, gt=0, le=1)
    """A token with an advantage of 0 or less is left out once its probability is lower by more than this: a
    difference of probabilities, not a ratio."""
    high: float = Field(default=0.2, gt=0, le=1)
    """A token with a positive advantage is left out once its probability is higher by more than this."""
    weight_cap: float = Field(default=20.0, ge=1, le=1000)
    """Largest weight. Small ones bring back the bias against rare tokens."""


class Sapo(Model):
    """Soft adaptive policy optimization (arXiv:2511.20347): in place of a clip a sigmoid of the ratio. The
    paper's mean over responses is aggregation: sequence-mean."""

    positive_temperature: float = Field(default=1.0, gt=0, le=100)
    """How fast the gradient vanishes as the ratio leaves 1, for positive advantages (1 / units of the
    ratio)."""
    negative_temperature: float = Field(default=1.05, gt=0, le=100)
    """The same for the others."""


class OwnLoss(Model):
    """A loss of the job's own: a function of `rljob_runtime.objective.tokens.Tokens` and of the
    log-probabilities that ratios are taken against, a tensor of shape (tokens,), which returns the loss of
    each token in that shape. A token's loss must depend on its own response alone. It is tried on a small
    batch before the job starts."""

    function: str = Field(
        pattern=FUNCTION,
        max_length=FUNCTION_LENGTH,
        json_schema_extra=form("module:function, such as my_losses:clip"),
    )
    """Import path `module:function`, looked for as reward.function is, on the trainer's machines too."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the function."""


class PolicyLoss(OneOf):
    """The policy-gradient objective."""

    one_of: ClassVar[tuple[str, ...]] = (
        "clip",
        "decoupled_clip",
        "truncated_reinforce",
        "gspo",
        "cispo",
        "dppo_tv",
        "sapo",
        "custom",
    )

    clip: Clip | None = None
    """PPO clip against the engines' log-probabilities."""
    decoupled_clip: DecoupledClip | None = None
    """PPO clip against recomputed log-probabilities, with truncated importance weights."""
    truncated_reinforce: TruncatedReinforce | None = None
    """REINFORCE with truncated importance weights."""
    gspo: Gspo | None = None
    """PPO clip of one ratio for each response."""
    cispo: Cispo | None = None
    """REINFORCE weighed by bounded ratios."""
    dppo_tv: DppoTv | None = None
    """REINFORCE that leaves out tokens whose probability has moved too far."""
    sapo: Sapo | None = None
    """A soft gate in place of a clip."""
    custom: OwnLoss | None = None
    """A function of the job's own."""


class Grpo(Model):
    """Group relative policy optimization (arXiv:2402.03300): the reward less the mean of its group, divided
    by the group's standard deviation unless algorithm.normalizeByStd is false (Dr. GRPO,
    arXiv:2503.20783)."""


class Rloo(Model):
    """REINFORCE leave-one-out (arXiv:2402.14740): the reward less the mean of the group's other rewards."""


class ReinforcePlusPlus(Model):
    """REINFORCE++ (arXiv:2501.03262): rewards whitened over all trained tokens of a step, so that groups of
    equal rewards teach too."""

    baseline: bool = False
    """Before that, subtract the mean of the group from each reward (REINFORCE++-baseline)."""


class MaxRl(Model):
    """Maximum likelihood reinforcement learning (arXiv:2602.02710): the reward less the mean of its group,
    divided by that mean, so that prompts which are rarely answered right weigh more. Rewards must be 0 or
    more."""


class OwnAdvantage(Model):
    """Advantages of the job's own: a function of all groups of a step, a sequence of
    `rljob_runtime.objective.advantages.GroupRewards`, which returns for each an array of shape (samples,).
    It must give the same for the same rewards: every rank of the trainer calls it, and the driver. It is
    tried on a few groups before the job starts."""

    function: str = Field(
        pattern=FUNCTION,
        max_length=FUNCTION_LENGTH,
        json_schema_extra=form("module:function, such as my_advantages:ranks"),
    )
    """Import path `module:function`, looked for as reward.function is, on the trainer's machines too."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the function."""


class NoAdvantage(Model):
    """Rewards are measured and teach nothing: every advantage is 0 before that of `distillation`, which must
    be set."""


class Advantage(OneOf):
    """How the rewards of responses become their advantages."""

    one_of: ClassVar[tuple[str, ...]] = ("grpo", "rloo", "reinforce_plus_plus", "max_rl", "none", "custom")

    grpo: Grpo | None = None
    """Compared with the group, by its standard deviation."""
    rloo: Rloo | None = None
    """Compared with the group's other responses."""
    reinforce_plus_plus: ReinforcePlusPlus | None = None
    """Compared with all responses of a step."""
    max_rl: MaxRl | None = None
    """Compared with the group, by its mean."""
    none: NoAdvantage | None = None
    """Not at all: a teacher alone is learned from."""
    custom: OwnAdvantage | None = None
    """A function of the job's own."""

    @property
    def compares_in_groups(self) -> bool:
        """Whether a group of one response would teach nothing."""
        if self.reinforce_plus_plus is not None:
            return self.reinforce_plus_plus.baseline
        return self.rloo is not None or self.max_rl is not None


class OffPolicyMask(Model):
    """Off-policy sequence masking (OPSM; DeepSeek-V3.2, arXiv:2512.02556, eq. 9): a response with a negative
    advantage is left out of the policy loss where the weights that are trained have moved too far from those
    that drew it."""

    max_divergence: float = Field(gt=0, le=100)
    """Largest mean over the response's trained tokens of log(engines' probability / trained weights'), in
    nats, of a response with a negative advantage that is trained. It grows with age and with differences
    between engine and trainer: 1e-4 in slime, 0.5 in TRL's example."""


class TeacherServer(Model):
    """A vLLM server that has the teacher, on devices of its own. The driver asks it for the log-probabilities
    of each finished response. A key comes from the driver's environment (RLJOB_TEACHER_KEY), and is sent as a
    bearer token."""

    url: str = Field(
        pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$",
        max_length=2048,
        json_schema_extra=form("an http or https address without a user, such as http://teacher.models:8000"),
    )
    """Where the server is: what stands before /v1/completions. It stands in the RLJob and is no place for a
    secret."""
    model: str = Field(min_length=1, max_length=512)
    """The teacher, by the name that the server gives it (--served-model-name). It must have the policy's
    tokenizer, and take a token more than the longest sample (--max-model-len)."""
    timeout_seconds: float = Field(default=120.0, gt=0, le=3600)
    """How long the scoring of a response may take, each time that it is tried."""
    concurrency: int = Field(default=16, ge=1, le=1024)
    """Most responses that are scored at a time."""


class Teacher(OneOf):
    """A causal language model with the policy's tokenizer. It is not trained."""

    one_of: ClassVar[tuple[str, ...]] = ("path", "server")

    path: str | None = Field(default=None, min_length=1)
    """Folder of the model (config.json, *.safetensors and the tokenizer's files), relative to the manifest's
    folder, in a cluster to storage.mountPath, which the trainer's pods must see. Each token of the policy's
    tokenizer must have the same number in the teacher's. It is scored in the trainer, at
    rollout.temperature."""
    server: TeacherServer | None = None
    """A server that has it. Responses are scored when they are finished, beside their rewards;
    rollout.temperature must be 1."""


class Distillation(Model):
    """On-policy distillation (Thinking Machines, "On-Policy Distillation", 2025; arXiv:2306.13649): the
    reverse KL from the policy to a teacher, on what the policy itself draws. coefficient * (log teacher's
    probability - log policy's) of each token is added to its advantage."""

    teacher: Teacher
    """What is learned from."""
    coefficient: float = Field(default=1.0, gt=0, le=100)
    """Weight of the teacher's part beside the advantage from rewards."""


class KlPenalty(Model):
    """Penalty on the divergence from the reference model (the weights that training began with)."""

    coefficient: float = Field(default=0.001, gt=0, le=100)
    """Weight of the penalty in the loss."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman's estimators; k3 is verl's low_var_kl."""


class Algorithm(Model):
    """GRPO and its relatives."""

    advantage: Advantage = Advantage(grpo=Grpo())
    """How rewards become advantages."""
    normalize_by_std: bool = True
    """With advantage grpo, divide a group's advantages by the standard deviation of its rewards; false is
    Dr. GRPO. Of no effect with other advantages."""
    policy_loss: PolicyLoss = PolicyLoss(clip=Clip())
    """The objective."""
    rollout_correction: ImportanceWeights | None = None
    """Take the loss's ratio against the policy that the step began with, and weigh each token by the ratio of
    that to the engines' policy (verl's rollout_is). null: the ratio is against the engines' policy.
    decoupledClip is clip with this."""
    off_policy_mask: OffPolicyMask | None = None
    """Leave out bad responses that the policy has moved away from; null leaves out none."""
    kl: KlPenalty | None = None
    """KL penalty; null keeps no reference model."""
    distillation: Distillation | None = None
    """Learn from a teacher, beside rewards or, with advantage none, in place of them; null has no teacher."""
    entropy_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of the entropy bonus."""
    aggregation: Aggregation = "token-mean"
    """token-mean: every response token of the batch counts the same (DAPO). sequence-mean: every response
    counts the same. Both divide by the count of the whole batch, over all ranks. fixed-length: every response
    counts as if it had rollout.maxResponseTokens tokens, so that a token counts the same in every batch
    (Dr. GRPO, arXiv:2503.20783)."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="normalizeByStd: false is for advantage grpo: no other is divided by a standard deviation"
            " of the group",
            # Not stored where it is grpo by default; normalizeByStd is stored as true with every other.
            cel="self.normalizeByStd || !has(self.advantage) || has(self.advantage.grpo)",
            holds=lambda self: self.normalize_by_std or self.advantage.grpo is not None,
            fields=("normalizeByStd",),
        ),
        Rule(
            message="rolloutCorrection is not for policyLoss clip, decoupledClip and truncatedReinforce:"
            " decoupledClip is clip with importance weights",
            cel="!has(self.rolloutCorrection) || has(self.policyLoss) && !has(self.policyLoss.clip)"
            " && !has(self.policyLoss.decoupledClip) && !has(self.policyLoss.truncatedReinforce)",
            holds=lambda self: (
                self.rollout_correction is None
                or self.policy_loss.chosen[0] not in ("clip", "decoupled_clip", "truncated_reinforce")
            ),
            fields=("rolloutCorrection",),
        ),
        Rule(
            message="advantage none needs distillation: nothing else would be learned",
            cel="!has(self.advantage) || !has(self.advantage.none) || has(self.distillation)",
            holds=lambda self: self.advantage.none is None or self.distillation is not None,
            fields=("advantage.none", "distillation"),
        ),
        Rule(
            message="offPolicyMask is not for advantage none, with which no response is a bad one",
            cel="!has(self.offPolicyMask) || !has(self.advantage) || !has(self.advantage.none)",
            holds=lambda self: self.off_policy_mask is None or self.advantage.none is None,
            fields=("offPolicyMask",),
        ),
    )

    @property
    def teacher_folder(self) -> str | None:
        """Folder of a teacher that the trainer scores; None without one."""
        return None if self.distillation is None else self.distillation.teacher.path

    @property
    def teacher_server(self) -> TeacherServer | None:
        """The server of a teacher that scores responses when they are finished; None without one."""
        return None if self.distillation is None else self.distillation.teacher.server


class Optimizer(Model):
    """AdamW and its learning-rate schedule."""

    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls from its peak to 0 over the job's optimizer updates."""
    warmup_updates: int = Field(default=0, ge=0, le=1_000_000)
    """Optimizer updates over which the learning rate rises from 0."""
    weight_decay: float = Field(default=0.01, ge=0, le=10)
    """AdamW's decoupled weight decay."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the second moment."""
    epsilon: float = Field(default=1e-8, gt=0, le=1)
    """AdamW's epsilon."""
    max_grad_norm: float = Field(default=1.0, gt=0, le=1000)
    """Gradients are scaled down to this global norm."""
    state_format: Literal["float32", "bfloat16"] = "float32"
    """Number format in which AdamW's two moments are kept. bfloat16 takes 4 bytes less for each parameter;
    updates are computed in float32, and moments are rounded stochastically."""
