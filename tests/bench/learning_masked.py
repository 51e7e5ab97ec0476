"""Does it learn where stale tokens are masked? The copy task with `staleTokens: wait` and with `mask`.

The trainer, staleness control, model and sampler are the runtime's. Time is counted in ticks: in each tick a
response gets one token, but those of every fourth prompt get theirs in every sixth tick alone, as on engines
that are crowded. A step takes no time. So with bound 1 the slow responses outlive the bound: `wait` waits for
them, `mask` trains what is fresh of them.

    python -m tests.bench.learning_masked --seed 0 --stale-tokens wait --steps 240
    python -m tests.bench.learning_masked --seed 0 --stale-tokens mask --steps 480
"""

import argparse
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch.distributed as dist
import yaml

from rljob_api import RLJob
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import TextTokenizer, build_tokenizer
from rljob_runtime.driver.job_settings import job_settings
from rljob_runtime.engines.sampling import sampling_of
from rljob_runtime.engines.spans import SpanRecorder
from rljob_runtime.engines.torch_model import SlotModel
from rljob_runtime.engines.torch_sampling import draw
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.load import load_reward
from rljob_runtime.samples import Group, Prompt, Sample
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trainer.model import save_initial_model
from rljob_runtime.trainer.rank import TrainerWorker
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.bench.figures import Figure, record
from tests.bench.real_runs import EXAMPLE, PLAIN

SLOW_PROMPT, SLOW_TICK = 4, 6
"""One prompt in so many is slow, and its responses get a token in one tick of so many."""
LAST = 10


@dataclass
class Growing:
    """A response that is generated."""

    slot: int
    prompt: Prompt
    spans: SpanRecorder
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    cached: int = 0
    done: bool = False

    @property
    def known(self) -> list[int]:
        return [*self.prompt.tokens.tolist(), *self.tokens]


class Run:
    """One job."""

    slow_prompt: int | None = SLOW_PROMPT
    """As the constant; None: no prompt is slow."""

    def __init__(self, job: RLJob, folder: Path) -> None:
        training = job.spec.training
        self.job, self.ticks, self.version = job, 0, 0
        self.tokenizer: TextTokenizer = build_tokenizer(training.tokenizer, folder, None)
        self.prompts = PromptSource(training.data, self.tokenizer, training.seed, folder)
        settings = job_settings(job, self.prompts.rows)
        self.steps = settings.total_steps
        self.controller = settings.controller(Ledger())
        self.reward = load_reward(str(training.reward.function), training.reward.arguments, [])
        self.sampling = sampling_of(job, self.tokenizer.stop_ids)
        model = self._model(folder)
        events = EventLog(None, 0, "bench", "bench")
        self.trainer = TrainerWorker(job, model, 0, 1, folder / "weights", 2, events, settings.total_updates)
        self.trainer.setup(dist.HashStore())
        slots = settings.bound.most_outstanding * training.rollout.samples_per_prompt
        self.model = SlotModel(model, slots, training.longest_sample_tokens, "float32")
        self.free = list(range(slots))
        self.running: dict[int, list[Growing]] = {}
        """Responses under way, by uid of their group."""
        self.ready: dict[int, Group] = {}
        self.random = np.random.default_rng(training.seed)
        self.next = 0

    def _model(self, folder: Path) -> Path:
        """The initial model's folder."""
        path, tokenizer = self.job.spec.training.model.path, self.tokenizer
        if path is not None:
            return Path(path)
        save_initial_model(
            self.job, tokenizer.vocabulary_size, tokenizer.pad_id, None, tokenizer.stop_ids[0],
            folder / "model",
        )  # fmt: skip
        return folder / "model"

    def train(self) -> list[StepMetrics]:
        """The metrics of all steps."""
        metrics = []
        for step in range(self.steps):
            self._dispatch()
            while (uids := self.controller.select(step)) is None:
                self._tick()
                self._dispatch()
            groups = [self.ready.pop(uid) for uid in uids]
            metrics.append(self.trainer.train_step(step, step, groups))
            self.controller.finished(uids)
            self.trainer.publish(step + 1)
            self.model.load(Path(self.trainer.write_version().location))
            self.version = step + 1
            for response in (each for group in self.running.values() for each in group):
                response.spans.mark(self.version, len(response.tokens))
        self.trainer.close()
        return metrics

    def _dispatch(self) -> None:
        for _ in range(self.controller.room(self.version)):
            prompt = self.prompts.prompt(self.next)
            self.controller.dispatched(prompt.uid, self.version)
            self.next += 1
            self.running[prompt.uid] = [
                Growing(self.free.pop(), prompt, SpanRecorder(self.version))
                for _ in range(self.job.spec.training.rollout.samples_per_prompt)
            ]

    def _tick(self) -> None:
        self.ticks += 1
        active = [
            each
            for uid, group in self.running.items()
            for each in group
            if not each.done and (not self._slow(uid) or self.ticks % SLOW_TICK == 0)
        ]
        # A prompt takes no tick of its own: steps of the model until each has a token more.
        while active:
            active = [each for each in self._step(active) if each.cached < len(each.known)]
        for uid in [uid for uid, group in self.running.items() if all(each.done for each in group)]:
            self.completed(uid, self._group(self.running.pop(uid)))

    def _slow(self, uid: int) -> bool:
        return self.slow_prompt is not None and uid % self.slow_prompt == 0

    def completed(self, uid: int, group: Group) -> None:
        """All responses of a group are complete."""
        self.ready[uid] = group
        self.controller.put(uid)

    def _step(self, active: list[Growing]) -> list[Growing]:
        """One token more of each into the model; those whose prompt is not all there yet."""
        inputs, positions = np.zeros(self.model.slots, np.int64), np.zeros(self.model.slots, np.int64)
        steps = {each.slot for each in active}
        for each in (one for group in self.running.values() for one in group if not one.done):
            # A slot that rests gets its newest token again, which changes nothing of what it holds.
            place = each.cached if each.slot in steps else max(0, each.cached - 1)
            inputs[each.slot], positions[each.slot] = each.known[place], place
        drawn = draw(self.model.step(inputs, positions), self.random.random(self.model.slots), self.sampling)
        filling = []
        for each in active:
            each.cached += 1
            if each.cached < len(each.known):
                filling.append(each)
                continue
            token, log_prob = int(drawn[0][each.slot]), float(drawn[1][each.slot])
            each.tokens.append(token)
            each.log_probs.append(log_prob)
            longest = self.job.spec.training.rollout.max_response_tokens
            each.done = token in self.sampling.stop_token_ids or len(each.tokens) == longest
            if each.done:
                self.free.append(each.slot)
        return filling

    def _group(self, responses: list[Growing]) -> Group:
        prompt = responses[0].prompt
        samples = tuple(self._sample(each) for each in responses)
        return Group(prompt.uid, prompt.epoch, prompt.row, prompt.tokens, samples, 0)

    def _sample(self, each: Growing) -> Sample:
        tokens = np.array(each.tokens, np.int32)
        stopped = each.tokens[-1] in self.sampling.stop_token_ids
        text = self.tokenizer.decode(tokens[:-1] if stopped else tokens)
        seen = RewardInput(each.prompt.text, text, each.prompt.answer, each.prompt.tokens, tokens, stopped)
        log_probs = np.array(each.log_probs, np.float32)
        finish: Literal["stop", "length"] = "stop" if stopped else "length"
        spans = each.spans.spans(len(tokens))
        return Sample(tokens, log_probs, spans, finish, float(self.reward(seen)))


def job_with(seed: int, stale_tokens: str, steps: int) -> RLJob:
    """The copy example with smaller steps."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    training = document["spec"]["training"]
    training["rollout"] |= {"engine": {"torch": {}}, "maxResponseTokens": 12}
    training["schedule"] = {"totalSteps": steps, "promptsPerBatch": 16}
    training["async"] = {"maxStaleness": 1, "staleTokens": stale_tokens}
    training |= PLAIN | {"optimizer": {"learningRate": 1e-3}}
    training["seed"] = seed
    return RLJob.model_validate(document)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stale-tokens", choices=["wait", "mask"], default="mask")
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(job_with(options.seed, options.stale_tokens, options.steps), Path(scratch))
        metrics = run.train()
    name, half = f"copy, staleTokens: {options.stale_tokens}, seed {options.seed}", len(metrics) // 2
    rewards = [each.reward_mean for each in metrics]
    oldest = max(each.staleness_max for each in metrics)
    figures = [
        Figure(f"{name}: mean reward of the last {LAST}", statistics.mean(rewards[-LAST:]), "reward"),
        Figure(f"{name}: mean reward half-way", statistics.mean(rewards[half : half + LAST]), "reward"),
        Figure(f"{name}: ticks of a step", run.ticks / len(metrics), "ticks"),
        Figure(f"{name}: oldest first token", oldest, "versions"),
    ]
    masked = [each.masked for each in metrics if each.masked is not None]
    if masked:
        share = statistics.mean(each.tokens for each in masked)
        trained = max(each.oldest_trained for each in masked)
        figures.append(Figure(f"{name}: share of masked tokens", share, "share"))
        figures.append(Figure(f"{name}: oldest trained token", trained, "versions"))
    record("learning_masked", figures, keep=True)


if __name__ == "__main__":
    main()
