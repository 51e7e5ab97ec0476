"""Where prompts come from and how responses are rewarded."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from rljob_api.base import FUNCTION, FUNCTION_LENGTH, Model, OneOf, Rule, form


class JsonlData(Model):
    """A file with one JSON object per line."""

    path: str = Field(min_length=1)
    """The file, relative to the manifest's folder, in a cluster to storage.mountPath."""


class ParquetData(Model):
    """A parquet file."""

    path: str = Field(min_length=1)
    """The file, relative to the manifest's folder, in a cluster to storage.mountPath."""


class HuggingFaceData(Model):
    """A data set that the `datasets` library loads."""

    name: str = Field(min_length=1)
    """Name on the hub, or a folder."""
    config: str | None = None
    """Configuration of the data set, where it has several."""
    split: str = "train"
    """Which split."""


class GeneratedData(Model):
    """Prompts of a built-in example task, made from training.seed; those of the sets of training.evaluation
    from the seeds that follow it."""

    task: Literal["copy", "repeat", "count", "reverse"]
    """copy: repeat the prompt's letters. repeat: repeat one letter. count: answer with as many tokens as the
    prompt has letters. reverse: the prompt's letters backwards."""
    rows: int = Field(default=4096, ge=1, le=100_000_000)
    """Number of prompts in an epoch."""
    min_length: int = Field(default=4, ge=1, le=4096)
    """Shortest prompt, in letters."""
    max_length: int = Field(default=4, ge=1, le=4096)
    """Longest prompt, in letters."""
    letters: int = Field(default=8, ge=1, le=4096)
    """How many letters of the alphabet are used."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="minLength must not be above maxLength",
            cel="self.minLength <= self.maxLength",
            holds=lambda self: self.min_length <= self.max_length,
            fields=("minLength", "maxLength"),
        ),
    )


class PromptRows(OneOf):
    """Where rows come from."""

    one_of: ClassVar[tuple[str, ...]] = ("jsonl", "parquet", "hugging_face", "generated")

    jsonl: JsonlData | None = None
    """A JSON Lines file."""
    parquet: ParquetData | None = None
    """A parquet file."""
    hugging_face: HuggingFaceData | None = None
    """A Hugging Face data set."""
    generated: GeneratedData | None = None
    """A built-in example task."""


class PromptData(PromptRows):
    """Prompts, and what belongs to them."""

    prompt_field: str = Field(default="prompt", min_length=1)
    """Field that holds the prompt: a string, or a list of chat messages (then the tokenizer's chat template
    is applied). `a.b` is field b of the object in field a, unless a field has that very name."""
    answer_field: str = Field(default="answer", min_length=1)
    """Field that holds the reference answer for the reward, named like promptField. Rows may lack it, but not
    all of them where another name than the default is given, or math_answer is the reward."""
    reward_fields: list[str] = Field(default_factory=list, max_length=32)
    """Further fields of a row that the reward function gets (`RewardInput.fields`), each named like
    promptField. Rows may lack one, but not all of them."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """System message that the tokenizer's chat template puts before each prompt; a prompt that is a string
    becomes the user's message. null: none."""
    max_prompt_tokens: int = Field(default=1024, ge=1, le=1048576)
    """Longest prompt, in tokens."""
    long_prompts: Literal["error", "skip"] = "error"
    """What happens to a prompt above maxPromptTokens: the job refuses to start, or the prompt is left out
    and counted."""


class DataSource(PromptRows):
    """One of several sources of prompts."""

    list_key: ClassVar[str] = "name"

    name: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$",
        max_length=48,
        json_schema_extra=form("letters, digits, _ and -, no digit or - first"),
    )
    """What it is called in curves, and what the reward function gets (`RewardInput.source`)."""
    weight: float | None = Field(default=None, gt=0, le=1_000_000)
    """Its share of the prompts is this, divided by the sum of all weights; a source that has too few prompts
    for its share repeats them, in another order each time. Not set, which none of them may be then: the
    number of its prompts, so that an epoch has each prompt of each source once."""
    prompt_field: str | None = Field(default=None, min_length=1)
    """Not set: data.promptField."""
    answer_field: str | None = Field(default=None, min_length=1)
    """Not set: data.answerField."""
    reward_fields: list[str] | None = Field(default=None, max_length=32)
    """Not set: data.rewardFields."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """Not set: data.systemPrompt."""


class HeldOutData(PromptRows):
    """Prompts that are not trained. What is not set is as in training."""

    prompt_field: str | None = Field(default=None, min_length=1)
    """Not set: training.data.promptField."""
    answer_field: str | None = Field(default=None, min_length=1)
    """Not set: training.data.answerField."""
    reward_fields: list[str] | None = Field(default=None, max_length=32)
    """Not set: training.data.rewardFields."""
    system_prompt: str | None = None
    """Not set: training.data.systemPrompt. "": none."""
    max_prompt_tokens: int | None = Field(default=None, ge=1, le=1048576)
    """Not set: training.data.maxPromptTokens, which it must not be above."""
    long_prompts: Literal["error", "skip"] = "error"
    """As training.data.longPrompts, which it does not follow: what is left out is not measured."""


class PoolShares(Model):
    """How often prompts of each pool are trained: the share of the times that the order comes to one of them.
    0: never again; 1: each time."""

    unsolved: float = Field(default=0.05, ge=0, le=1)
    """Prompts of which no response passed, or ever had a reward. They may be solved later: a little keeps
    measuring them."""
    hard: float = Field(default=0.2, ge=0, le=1)
    """Prompts with a pass rate up to hardUpTo."""
    normal: float = Field(default=1.0, gt=0, le=1)
    """Prompts with a pass rate between the two."""
    easy: float = Field(default=0.2, ge=0, le=1)
    """Prompts with a pass rate from easyFrom on."""
    solved: float = Field(default=0.05, ge=0, le=1)
    """Prompts of which all responses passed."""


class Curriculum(Model):
    """Prompts by difficulty: each is in a pool by its pass rate, the share of the responses of its newest
    group whose reward is at least passReward. A prompt that was not tried yet is always trained; while its
    first group is under way others are."""

    hard_up_to: float = Field(default=0.25, gt=0, lt=1)
    """Largest pass rate of a hard prompt."""
    easy_from: float = Field(default=0.75, gt=0, lt=1)
    """Smallest pass rate of an easy prompt."""
    shares: PoolShares = PoolShares()
    """How often prompts of each pool are trained."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="hardUpTo must be below easyFrom",
            cel="self.hardUpTo < self.easyFrom",
            holds=lambda self: self.hard_up_to < self.easy_from,
            fields=("hardUpTo", "easyFrom"),
        ),
    )


class Data(PromptData):
    """The prompts."""

    one_of: ClassVar[tuple[str, ...]] = (*PromptRows.one_of, "sources")

    sources: list[DataSource] | None = Field(default=None, min_length=1, max_length=16)
    """Several sources of prompts, mixed evenly: every stretch of the order has its share of each. An epoch
    has as many prompts as all of them together."""
    shuffle: bool = True
    """Shuffle each epoch (seeded by training.seed); of several sources, each by itself."""
    pass_reward: float = Field(default=1.0, ge=-1e6, le=1e6)
    """A response passes, as the pass rates of `sources`, `curriculum` and rollout.filter count it, where its
    reward is at least this."""
    curriculum: Curriculum | None = None
    """Train prompts by how difficult they turn out; null trains all of them alike. With schedule.totalSteps:
    how many prompts of an epoch are passed over is not known before."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="sources must have different names",
            cel="!has(self.sources) || self.sources.all(x, self.sources.exists_one(y, y.name == x.name))",
            holds=lambda self: len({each.name for each in self.sources or ()}) == len(self.sources or ()),
            fields=("sources",),
        ),
        Rule(
            message="sources must all have a weight, or none of them",
            cel="!has(self.sources) || self.sources.all(x, has(x.weight))"
            " || !self.sources.exists(x, has(x.weight))",
            holds=lambda self: len({each.weight is None for each in self.sources or ()}) < 2,
            fields=("sources",),
        ),
    )

    def parts(self) -> tuple[PromptData, ...]:
        """Each of the sources by itself, with what it does not set taken from here; without sources: this
        alone."""
        return tuple(map(self.completed, self.sources)) if self.sources is not None else (self,)

    def completed(self, rows: DataSource | HeldOutData) -> PromptData:
        """Other rows, with what they do not set taken from here."""
        kind, place = rows.chosen
        names = [name for name in PromptData.model_fields if name not in PromptRows.one_of]
        own = {name: value for name in names if (value := getattr(rows, name, None)) is not None}
        found = {**{name: getattr(self, name) for name in names}, **own, kind: place}
        # An empty system prompt says that there is none.
        return PromptData(**{**found, "system_prompt": found["system_prompt"] or None})


class OverlongShaping(Model):
    """DAPO's soft punishment of overlong responses (arXiv:2503.14476, eq. 13).

    A response of L tokens has min(0, -(L - (maxResponseTokens - bufferTokens)) / bufferTokens *
    penaltyFactor) added to its reward.
    """

    buffer_tokens: int = Field(ge=1, le=1048576)
    """Length of the punished zone below maxResponseTokens, in tokens."""
    penalty_factor: float = Field(default=1.0, ge=0, le=1000)
    """Punishment at maxResponseTokens."""


_FUNCTION_FORM = form("module:function, such as my_rewards:score")


class WeightedReward(Model):
    """One of several rewards, whose weighted sum is trained."""

    name: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$",
        max_length=48,
        json_schema_extra=form("letters, digits, _ and -, no digit or - first"),
    )
    """What it is called in metrics, samples and the report."""
    function: str = Field(pattern=FUNCTION, max_length=FUNCTION_LENGTH, json_schema_extra=_FUNCTION_FORM)
    """As reward.function."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the function, beside reward.arguments and before them."""
    weight: float = Field(default=1.0, ge=-1000, le=1000)
    """What its value is multiplied by in the sum. 0: it is recorded and not trained."""


class Reward(OneOf):
    """How a response is scored."""

    one_of: ClassVar[tuple[str, ...]] = ("function", "functions")

    function: str | None = Field(
        default=None, pattern=FUNCTION, max_length=FUNCTION_LENGTH, json_schema_extra=_FUNCTION_FORM
    )
    """Import path `module:function`. The function takes a `rljob_runtime.rewards.RewardInput` and returns a
    number between -1e6 and 1e6, or a dict: `reward` (default: the sum of the parts), `parts` (numbers by
    their names) and `metrics` (numbers that are recorded and not trained). Built in:
    rljob_runtime.rewards.tasks:copy (repeat, count, reverse) and rljob_runtime.rewards.math:math_answer."""
    functions: list[WeightedReward] | None = Field(default=None, min_length=1, max_length=8)
    """Several rewards: the sum of their values, each multiplied by its weight, is trained. Where one of them
    fails for a response, it has no reward."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the function, or for each of the functions."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Time that one response may take to score. A response whose reward raises or takes longer is left out
    of the loss and counted. With several functions: the time for all of them."""
    workers: int = Field(default=1, ge=1, le=256)
    """Processes that run the functions."""
    overlong: OverlongShaping | None = None
    """Punish responses that come close to maxResponseTokens."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="functions must have different names",
            cel="!has(self.functions)"
            " || self.functions.all(x, self.functions.exists_one(y, y.name == x.name))",
            holds=lambda self: len({each.name for each in self.functions or ()}) == len(self.functions or ()),
            fields=("functions",),
        ),
    )
