"""Synchronous GRPO in one straight loop: generate a batch, train it, load the weights, again.

No queue, no Ray, no staleness control: what asynchronous training with bound 0 must equal bit for bit.
"""

import asyncio
from pathlib import Path

import numpy as np
import torch.distributed as dist

from rljob_api import RLJob
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import TextTokenizer, build_tokenizer
from rljob_runtime.driver.job_settings import job_settings
from rljob_runtime.engines.protocol import Request
from rljob_runtime.engines.sampling import sampling_of
from rljob_runtime.engines.torch import TorchEngine
from rljob_runtime.groups.responses import Response, response_seed
from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.load import load_reward
from rljob_runtime.samples import Group, Prompt, Sample
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trainer.rank import TrainerWorker


def synchronous_losses(job: RLJob, model_folder: Path, scratch: Path, steps: int) -> list[float]:
    """The loss of each of the first `steps` steps of a job with torch engines."""
    return asyncio.run(_train(job, model_folder, scratch, steps))


async def _train(job: RLJob, model_folder: Path, scratch: Path, steps: int) -> list[float]:
    training = job.spec.training
    tokenizer = build_tokenizer(training.tokenizer, scratch, None)
    prompts = PromptSource(training.data, tokenizer, training.seed, scratch)
    plan = job_settings(job, prompts.rows)
    events = EventLog(None, 0, "reference", "reference")
    updates = plan.total_steps * training.schedule.batches_per_step
    trainer = TrainerWorker(job, model_folder, 0, 1, scratch / "weights", 2, events, updates)
    trainer.setup(dist.HashStore())
    engine = TorchEngine(
        "reference",
        model_folder,
        sampling_of(job, tokenizer.stop_ids),
        training.rollout.max_running_requests,
        training.data.max_prompt_tokens + training.rollout.max_response_tokens,
    )
    await engine.start(0)
    losses = []
    try:
        for step in range(steps):
            first = step * training.groups_per_step
            batch = [prompts.prompt(uid) for uid in range(first, first + training.groups_per_step)]
            groups = await asyncio.gather(*(_group(job, engine, tokenizer, prompt, step) for prompt in batch))
            losses.append(trainer.train_step(step, step, groups).loss)
            trainer.publish(step + 1)
            await engine.pause("keep")
            await engine.load(trainer.write_version())
            await engine.resume()
    finally:
        await engine.close()
        trainer.close()
    return losses


async def _group(
    job: RLJob, engine: TorchEngine, tokenizer: TextTokenizer, prompt: Prompt, version: int
) -> Group:
    training = job.spec.training
    reward = load_reward(str(training.reward.function), training.reward.arguments, [])
    samples = []
    for index in range(training.rollout.samples_per_prompt):
        seed = response_seed(training.seed, prompt.uid, index)
        request = Request(f"{prompt.uid}.{index}", prompt.tokens, training.rollout.max_response_tokens, seed)
        # The same seed as in the job: from the same weights it gives the same tokens.
        response = Response(began=0.0)
        response.extend(await engine.submit(request), "reference", "fast", 0.0)
        finished = response.finish == "stop"
        text = tokenizer.decode(response.tokens[:-1] if finished else response.tokens)
        seen = RewardInput(prompt.text, text, prompt.answer, prompt.tokens, response.tokens, finished)
        samples.append(
            Sample(response.tokens, response.log_probs, response.spans, response.finish, float(reward(seen)))
        )
    return Group(prompt.uid, prompt.epoch, prompt.row, np.asarray(prompt.tokens), tuple(samples), version)
