"""How the policy is evaluated while it is trained."""

from typing import ClassVar

from pydantic import Field

from rljob_api.base import Model, OneOf, Rule, form
from rljob_api.data import HeldOutData
from rljob_api.pools import MOST_WORKERS


class EvaluationSet(Model):
    """One set of prompts that are held out from training."""

    list_key: ClassVar[str] = "name"

    name: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$",
        max_length=48,
        json_schema_extra=form("letters, digits, _ and -, no digit or - first"),
    )
    """What it is called in curves, status and report."""
    data: HeldOutData
    """Its prompts; each is evaluated, in every evaluation. None may be among the prompts that are trained
    (of generated tasks, which repeat prompts by chance, this is not demanded)."""


class EvaluationSampling(Model):
    """How tokens of an evaluation's responses are drawn; where a field is not set, as in training."""

    temperature: float | None = Field(default=None, ge=0, le=10)
    """Sampling temperature; 0: always the most probable token. Not set: rollout.temperature."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling: smallest set of tokens with this probability; 1 is off. Not set: rollout.topP."""
    top_k: int | None = Field(default=None, ge=0, le=1048576)
    """Sample from the k most probable tokens; 0 is off. Not set: rollout.topK."""


class SharedEngines(Model):
    """Nothing to set."""


class EvaluationEngines(OneOf):
    """Which engines generate the responses of an evaluation, while training goes on."""

    one_of: ClassVar[tuple[str, ...]] = ("shared", "fast_rollout", "heavy_rollout")

    shared: SharedEngines | None = None
    """All of them, beside training; they get the next weight version when it is over."""
    fast_rollout: int | None = Field(default=None, ge=1, le=MOST_WORKERS)
    """So many engines of the fast pool, set aside while it runs: they generate nothing else and keep its
    weights. The others train on with newer ones."""
    heavy_rollout: int | None = Field(default=None, ge=1, le=MOST_WORKERS)
    """So many engines of the heavy pool, in the same way."""


class Evaluation(Model):
    """Evaluations of the policy on prompts that are not trained: with the initial weights, with every
    `everyVersions`-th weight version, and with the last one. Each is of one weight version."""

    sets: list[EvaluationSet] = Field(min_length=1, max_length=8)
    """The prompts, by name."""
    every_versions: int = Field(default=10, ge=1, le=1_000_000)
    """Weight versions from one evaluation to the next."""
    samples_per_prompt: int = Field(default=1, ge=1, le=1024)
    """Responses to each prompt: n of mean@n, and the largest k of pass@k."""
    sampling: EvaluationSampling = EvaluationSampling()
    """How tokens are drawn."""
    engines: EvaluationEngines = EvaluationEngines(shared=SharedEngines())
    """Which engines generate the responses."""
    pass_reward: float = Field(default=1.0, ge=-1e6, le=1e6)
    """A response passes, as pass@k counts it, where its reward is at least this."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="sets must have different names",
            cel="self.sets.all(x, self.sets.exists_one(y, y.name == x.name))",
            holds=lambda self: len({each.name for each in self.sets}) == len(self.sets),
            fields=("sets",),
        ),
    )
