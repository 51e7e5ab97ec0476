"""Log-probabilities of engine and trainer after every update, of a dense model and of a mixture of experts.

vLLM and a trainer rank, both in float32. The rank trains, 32 requests are in flight when the engine gets what
came of it, and responses go on with the new weights (KV cache recomputed). Every token of every response is
compared with a plain Hugging Face model that has the weights of the token's label. The trainer's own figure
stands beside: the largest difference over the tokens that it trained and that were drawn with the weights of
its step.

Where a router's choice of experts hangs on the rounding of its logits, engine and trainer may choose others:
from such a token on, those weights' tokens of the response are counted and not compared.

    python -m tests.bench.parity
"""

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rljob_runtime.engines.protocol import Request
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.samples import Generation, Group, Sample, Span
from tests.bench.figures import Figure, record
from tests.support.runtime.engines import vllm_engine
from tests.support.runtime.tiny_models import Family, Reference, perturbed, request, tiny_model, weights_at
from tests.support.runtime.trainer_ranks import stored_version, trainer_job, worker

UPDATES, PROMPTS, SAMPLES, RESPONSE = 10, 8, 4, 120
TRAINED = 4
"""Groups of a step."""
GOAL = 1e-4
"""Nats."""
MODELS: dict[str, Family] = {"dense": "qwen3", "mixture of experts": "qwen3_moe"}


@dataclass
class Answers:
    """An engine's streams of groups, and what came back."""

    engine: VllmEngine
    begun: int = 0
    ended: list[list[tuple[Request, Generation]]] = field(default_factory=list)
    """Of each group."""
    stopping: bool = False

    async def stream(self) -> None:
        """One group after the other."""
        while not self.stopping:
            uid = self.begun
            self.begun += 1
            asked = [
                request(f"{uid}-{sample}", uid, length=5 + uid % 8, max_tokens=RESPONSE)
                for sample in range(SAMPLES)
            ]
            got = await asyncio.gather(*map(self.engine.submit, asked))
            self.ended.append(list(zip(asked, got, strict=True)))

    async def groups_with(self, version: int) -> list[Group]:
        """The groups of a step: the first that ended with tokens of `version`."""
        found: list[list[tuple[Request, Generation]]] = []
        async with asyncio.timeout(120):
            while len(found) < TRAINED:
                # The engine tells of a response nobody but who asked for it.
                await asyncio.sleep(0.01)
                found = [
                    pairs for pairs in self.ended if all(got.spans[-1].version == version for _, got in pairs)
                ]
        return [group(uid, pairs) for uid, pairs in enumerate(found[:TRAINED])]

    @property
    def responses(self) -> list[tuple[Request, Generation]]:
        return [pair for pairs in self.ended for pair in pairs]


def group(uid: int, pairs: list[tuple[Request, Generation]]) -> Group:
    """Four responses to a prompt, with random rewards."""
    rewards = np.random.default_rng(uid).random(len(pairs)).tolist()
    samples = tuple(
        Sample(got.tokens, got.log_probs, got.spans, got.finish, reward, None)
        for (_, got), reward in zip(pairs, rewards, strict=True)
    )
    oldest = min(got.spans[0].version for _, got in pairs)
    return Group(uid, 0, uid, pairs[0][0].tokens, samples, oldest)


@dataclass
class Compared:
    """An engine's tokens of one version beside what a trainer makes of them."""

    largest: float = 0.0
    """Difference of log-probabilities, in nats."""
    tokens: int = 0
    undecided: int = 0
    """Tokens that are not compared: rounding decided between experts."""
    largest_undecided: float = 0.0
    """Difference of these."""

    def add(self, reference: Reference, span: Span, asked: Request, got: Generation) -> None:
        """A span of a response; the reference has the weights of its version."""
        sure = min(max(span.start, reference.surely_routed_tokens(asked, got)), span.end)
        apart = np.abs(got.log_probs - reference.log_probs(asked, got))
        self.largest = max(self.largest, float(apart[span.start : sure].max(initial=0.0)))
        self.largest_undecided = max(self.largest_undecided, float(apart[sure : span.end].max(initial=0.0)))
        self.tokens += sure - span.start
        self.undecided += span.end - sure


async def trained(root: Path, family: Family) -> tuple[Answers, dict[int, Path], list[float]]:
    """What an engine answered while a trainer made new weights, the weights of each version, and the
    trainer's own largest difference in each step."""
    base = tiny_model(root / family, family)
    folders = {0: perturbed(base, root / f"{family}-0", 0, scale=0.0)}
    job = trainer_job(optimizer={"learningRate": 5e-3}, parallel={"maxTokensPerMicroBatch": 512})
    own: list[float] = []
    with worker(job, base, keep_versions=UPDATES + 1, total_updates=UPDATES) as trainer:
        answers = Answers(vllm_engine(base, "parity", slots=PROMPTS * SAMPLES, length=256))
        engine = answers.engine
        await engine.start(0)
        streams = [asyncio.create_task(answers.stream()) for _ in range(PROMPTS)]
        for version in range(UPDATES):
            groups = await answers.groups_with(version)
            metrics = await asyncio.to_thread(trainer.train_step, version, version, groups)
            assert metrics.parity_max is not None, "the groups have tokens of the step's version"
            own.append(metrics.parity_max)
            folders[version + 1] = Path(stored_version(trainer, version + 1).location)
            await engine.pause("keep")
            await engine.load(weights_at(version + 1, folders[version + 1]))
            await engine.resume()
        answers.stopping = True
        await asyncio.gather(*streams)
        await engine.close()
        copied = {
            version: shutil.copytree(at, root / f"{family}-v{version}") for version, at in folders.items()
        }
    return answers, copied, own


def compared(base: Path, folders: dict[int, Path], answers: Answers) -> list[Compared]:
    """Of each version."""
    reference, found = Reference(base), []
    for version, folder in folders.items():
        reference.use(folder)
        found.append(Compared())
        for asked, got in answers.responses:
            for span in got.spans:
                if span.version == version:
                    found[-1].add(reference, span, asked, got)
    return found


def figures(name: str, answers: Answers, found: list[Compared], own: list[float]) -> list[Figure]:
    for version, each in enumerate(found):
        trainer = f", by the trainer's metric {own[version]:.3g}" if version < len(own) else ""
        print(f"{name}, version {version}: {each.tokens} tokens, largest {each.largest:.3g}{trainer}")
    goal, undecided = f"at most {GOAL:.0e}", sum(each.undecided for each in found)
    above = sum(each.largest > GOAL or not each.tokens for each in found)
    mixed = sum(len({span.version for span in got.spans}) > 1 for _, got in answers.responses)
    rows = [
        Figure(f"{name}: largest difference", max(each.largest for each in found), "nats", goal=goal),
        Figure(f"{name}: largest difference by the trainer's metric", max(own), "nats", goal=goal),
        Figure(f"{name}: versions above {GOAL:.0e}, of {len(found)}", above, "versions", goal="0"),
        Figure(f"{name}: tokens compared", sum(each.tokens for each in found), "tokens"),
        Figure(f"{name}: of {len(answers.responses)} responses of several versions", mixed, "responses"),
    ]
    if undecided:
        largest = max(each.largest_undecided for each in found)
        rows.append(Figure(f"{name}: tokens not compared", undecided, "tokens"))
        rows.append(Figure(f"{name}: largest difference of these", largest, "nats"))
    return rows


async def measure(root: Path) -> None:
    rows: list[Figure] = []
    for name, family in MODELS.items():
        answers, folders, own = await trained(root, family)
        rows += figures(name, answers, compared(root / family, folders, answers), own)
    record("parity", rows)


def main() -> None:
    root = Path(tempfile.mkdtemp(prefix="rljob-bench-", dir="/dev/shm"))
    try:
        asyncio.run(measure(root))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
