"""How responses are generated."""

from typing import Any, ClassVar

from pydantic import Field

from rljob_api.base import Model, OneOf, Rule
from rljob_api.routing import Routing


class SuffixDrafts(Model):
    """Drafts from the response's own text and from finished responses to the same prompt."""

    kept_tokens: int = Field(default=1_048_576, ge=1, le=1_073_741_824)
    """Most tokens of finished responses, and of their prompts, that an engine keeps to draft from; the oldest
    prompts' go first. A token takes 4 bytes, and one of a response about 100 more while responses to the same
    prompt are being drafted."""


class NgramDrafts(Model):
    """Drafts from the response's own text, its prompt included, alone."""


class Speculation(OneOf):
    """Drafting without a draft model. The longest run of tokens at a response's end that was seen before is
    looked up; what followed it then is the draft. The model computes all drafted tokens in one step and keeps
    them by rejection sampling, so responses have the same distribution and the same log-probabilities as
    without. It pays where few requests run and texts repeat themselves or each other."""

    one_of: ClassVar[tuple[str, ...]] = ("suffix", "ngram")

    suffix: SuffixDrafts | None = None
    """Draft from the response's own text and from finished responses to the same prompt."""
    ngram: NgramDrafts | None = None
    """Draft from the response's own text alone."""
    draft_tokens: int = Field(default=8, ge=1, le=64)
    """Longest draft, in tokens."""
    minimum_match: int = Field(default=3, ge=1, le=64)
    """Fewest tokens at a response's end that must be found again for a draft."""
    minimum_chance: float = Field(default=0.2, gt=0, lt=1)
    """Chance of being kept that a token must have to be drafted, by the engine's own count of what it kept so
    far after runs of that length. A drafted token that is not kept was computed in vain."""
    at_most_running: int = Field(default=8, ge=1, le=65536)
    """Draft only while an engine runs no more requests than this: with many, an accelerator has no time left
    over to check drafts."""


class VllmEngine(Model):
    """vLLM, one AsyncLLM for each rollout worker."""

    enforce_eager: bool = False
    """Run without compiled graphs. Always so on CPUs."""
    capture_sizes: list[int] | None = Field(default=None, min_length=1, max_length=512)
    """Batch sizes, in tokens of a step, for which the engine captures graphs; a decode step computes the next
    larger one, and above the largest the engine runs without a graph. Each takes memory, and time at the
    engine's start. Default: every size up to 16 and eight to each doubling beyond, up to four times
    maxRunningRequests, 512 at least and 2048 at most, so that steps that compute prompts as well have one; on
    Ascend vllm-ascend's. Of no effect on CPUs."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    """Part of an accelerator's memory that the engine takes."""
    kv_cache_gi_b: float = Field(default=1.0, gt=0, le=4096, alias="kvCacheGiB")
    """KV cache of an engine on CPUs, in GiB. Must hold the longest sample."""
    max_batched_tokens: int | None = Field(default=None, ge=32, le=1048576)
    """Most tokens in one engine step, so that it limits how fast prompts are computed, and after an update
    the responses so far. Not below maxRunningRequests. Default: what vLLM takes for batches of prompts: 4096
    on CPUs, 16384 on GPUs with 70 GiB and more that are no A100, 8192 otherwise; maxRunningRequests where
    that is more. The memory of such a step is part of the engine's."""
    prefix_caching: bool = True
    """Share the KV cache of equal prompt prefixes."""
    delay_prefills: bool = False
    """Let new prompts wait for one another, 64 steps or 2 s at most, where the engine is full: a step that
    computes a prompt beside running responses takes longer than one that does not. They begin when the places
    that are empty meanwhile have cost as much as such a step costs the running ones, by the engine's own
    times of its steps. Worth a quarter more tokens where hundreds of requests run and others always wait, and
    nothing where few do. Of no effect on Ascend."""
    speculation: Speculation | None = None
    """Several tokens a step for the last, long responses of a batch. Default: off, since a token that is not
    kept was computed in vain; where vLLM runs a model with its older model runner, as on CPUs and for
    mixtures of experts, it then prepares no step while the last one runs."""
    additional_config: dict[str, Any] = Field(default_factory=dict)
    """Passed to the platform plug-in. With `accelerator: ascend` it has {"rl_config": {"enabled": true}}
    where it names no rl_config: with that vllm-ascend keeps weights in a layout that can be updated. 0.23.0
    knows no rl_config; there the variable VLLM_ASCEND_ENABLE_NZ=0 does it, which the engine sets."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="captureSizes must be ascending numbers from 1 to 65536",
            cel="!has(self.captureSizes) || (self.captureSizes.isSorted()"
            " && self.captureSizes.all(size, size >= 1 && size <= 65536))",
            holds=lambda self: (
                self.capture_sizes is None
                or (
                    self.capture_sizes == sorted(self.capture_sizes)
                    and all(1 <= size <= 65536 for size in self.capture_sizes)
                )
            ),
            fields=("captureSizes",),
        ),
        Rule(
            message="captureSizes must be left out with enforceEager: no graph is captured then",
            cel="!has(self.captureSizes) || !self.enforceEager",
            holds=lambda self: self.capture_sizes is None or not self.enforce_eager,
            fields=("captureSizes", "enforceEager"),
        ),
    )


class TorchEngine(Model):
    """A small in-process engine on Hugging Face transformers, on CPUs: no compile step, starts in a second.
    It computes with the cpusPerWorker of its pool; with 1, a response depends on the weights, its prompt and
    the seed alone, bit for bit."""


class Engine(OneOf):
    """The inference engine of a rollout worker."""

    one_of: ClassVar[tuple[str, ...]] = ("vllm", "torch")

    vllm: VllmEngine | None = None
    """vLLM."""
    torch: TorchEngine | None = None
    """The built-in torch engine."""


_LEAST_TEMPERATURE = 0.01
"""vLLM's own: it takes this one in the place of a lower one, with a line in its log."""
_MAX_REFILL = 3
"""Unless it is said otherwise."""


class ZeroVariance(Model):
    """Groups whose rewards are all equal teach nothing: every advantage is 0. They are refused, and other
    prompts take their places (DAPO's dynamic sampling, verl's filter_groups)."""

    max_refill: int = Field(default=_MAX_REFILL, ge=1, le=1000)
    """Most groups that are refused before the next step is trained, in multiples of the groups of a step.
    Further ones are trained, so that a step does not wait for ever."""


class PassRate(Model):
    """Groups whose pass rate (the share of their responses whose reward, with all shaping, is at least
    data.passReward) lies outside min to max are refused, and other prompts take their places."""

    minimum: float = Field(default=0.0, ge=0, le=1, alias="min")
    """Smallest pass rate that is trained."""
    maximum: float = Field(default=1.0, ge=0, le=1, alias="max")
    """Largest pass rate that is trained."""
    max_refill: int | None = Field(default=None, ge=1, le=1000)
    """As zeroVariance.maxRefill, which bounds both where both are set. Default: 3."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="min must not be above max: every group would be refused",
            cel="self.min <= self.max",
            holds=lambda self: self.minimum <= self.maximum,
            fields=("min", "max"),
        ),
        Rule(
            message="set min above 0 or max below 1: from 0 to 1 no group is refused",
            cel="self.min > 0.0 || self.max < 1.0",
            holds=lambda self: self.minimum > 0 or self.maximum < 1,
            fields=("",),
        ),
    )


class Filter(Model):
    """Which groups are not trained."""

    zero_variance: ZeroVariance | None = None
    """Refuse groups whose rewards, with all shaping, are equal; null trains them."""
    pass_rate: PassRate | None = None
    """Refuse groups by their pass rate; null trains them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="passRate.maxRefill must not be set with zeroVariance, whose maxRefill bounds both",
            cel="!has(self.zeroVariance) || !has(self.passRate) || !has(self.passRate.maxRefill)",
            holds=lambda self: (
                self.zero_variance is None or self.pass_rate is None or self.pass_rate.max_refill is None
            ),
            fields=("passRate",),
        ),
    )

    @property
    def max_refill(self) -> int | None:
        """Most groups that are refused before the next step is trained, for whatever reason, in multiples of
        the groups of a step; None: no group is ever refused."""
        if self.zero_variance is not None:
            return self.zero_variance.max_refill
        if self.pass_rate is not None:
            return self.pass_rate.max_refill or _MAX_REFILL
        return None


class OverSampling(Model):
    """More groups are begun than the steps train; once a step has its groups, the surplus that is still under
    way and could not be trained in time is aborted, as whole groups. An aborted prompt goes before all others
    again within two weight versions, and is not aborted again."""

    rate: float = Field(default=0.25, gt=0, le=0.25)
    """Groups that are begun beyond what maxStaleness admits, as a part of the groups of a weight version
    (verl's over_sample_rate)."""


class Rollout(Model):
    """Sampling of responses."""

    engine: Engine = Engine(vllm=VllmEngine())
    """Which engine generates."""
    samples_per_prompt: int = Field(default=8, ge=1, le=1024)
    """Responses to one prompt: the size of a GRPO group."""
    max_response_tokens: int = Field(default=1024, ge=1, le=1048576)
    """Longest response, in tokens."""
    forced_lengths: str | None = Field(default=None, min_length=1)
    """For benchmarks: the `lengths.jsonl` of a run, or a file of that form. Path relative to the manifest's
    folder, in a cluster to storage.mountPath. Each response gets as many tokens as it has there: no stop
    token ends it, and its end counts as reaching the length. So runs are compared on the same work. The file
    must have this job's samplesPerPrompt, prompts and order, no response above maxResponseTokens, and every
    prompt that the job trains."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature; below 0.01 it is 0.01, for vLLM draws at no lower one. The trainer's
    log-probabilities use the same one."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: smallest set of tokens with this probability. 1 is off."""
    top_k: int = Field(default=0, ge=0, le=1048576)
    """Sample from the k most probable tokens. 0 is off."""
    max_running_requests: int = Field(default=256, ge=1, le=65536)
    """Most requests that one engine runs at a time; further ones wait at the router."""
    routing: Routing | None = None
    """Which engine runs which request. Default: adaptive, which is as leastInFlight while the job has a
    single engine."""
    over_sampling: OverSampling | None = None
    """Begin more groups than are trained, and abort the slowest; null begins none."""
    filter: Filter = Filter()
    """Which groups are not trained. The prompt of a refused group is done, until the next epoch."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="routing.probe.probes must be below samplesPerPrompt, or no response is left to route",
            cel="!has(self.routing) || !has(self.routing.probe)"
            " || self.routing.probe.probes < self.samplesPerPrompt",
            holds=lambda self: (
                self.routing is None
                or self.routing.probe is None
                or self.routing.probe.probes < self.samples_per_prompt
            ),
            fields=("routing.probe.probes", "samplesPerPrompt"),
        ),
        Rule(
            message="filter.zeroVariance needs samplesPerPrompt of 2 or more: a single reward is compared "
            "with nothing",
            cel="!has(self.filter.zeroVariance) || self.samplesPerPrompt >= 2",
            holds=lambda self: self.filter.zero_variance is None or self.samples_per_prompt >= 2,
            fields=("filter.zeroVariance", "samplesPerPrompt"),
        ),
    )

    @property
    def drawn_at(self) -> float:
        """The temperature at which engines draw, and the trainer scores."""
        return max(self.temperature, _LEAST_TEMPERATURE)
