"""What drafts gain from siblings that ended on another engine.

One vLLM engine with suffix drafting runs half of each group, with the models and lengths of
`speculation_tail` and twice its prompts; the other half of each group has ended on another engine before. The
baseline has drafts from what ends on the engine itself alone. Told is how many tokens a response of the tail,
the last 10 % of them, gets in a step. It does not depend on the machine; how fast the tail comes does, and is
not told.

    python -m tests.bench.speculation_elsewhere [--out FOLDER]
"""

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.finished_texts import finished_text
from rljob_runtime.engines.protocol import FinishedText, Request, Sampling
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.engines.vllm_shape import Accelerator
from tests.bench.figures import Figure, parser, record
from tests.bench.speculation_tail import (
    ON_CPU,
    ON_CUDA,
    PROMPT_TOKENS,
    SAMPLES,
    Batch,
    Size,
    model,
    requests,
    run,
)
from tests.support.runtime.engines import load, started

BATCHES = 8
Texts = list[list[list[FinishedText]]]
"""By scale and batch: what has ended elsewhere."""


def halves(asked: Sequence[Request]) -> tuple[list[Request], list[Request]]:
    """Of each group the responses for this engine, and those for the other one."""
    here = [number % SAMPLES < SAMPLES // 2 for number in range(len(asked))]
    return (
        [one for one, ours in zip(asked, here, strict=True) if ours],
        [one for one, ours in zip(asked, here, strict=True) if not ours],
    )


def engine(size: Size, folders: list[Path], drafts: bool) -> VllmEngine:
    options = VllmOptions.model_validate(
        {"gpuMemoryUtilization": 0.7}
        | ({"speculation": {"suffix": {}, "atMostRunning": size.requests // 8}} if drafts else {})
    )
    length = PROMPT_TOKENS + size.most_tokens
    accelerator: Accelerator = "nvidia" if torch.cuda.is_available() else "cpu"
    return VllmEngine(
        "bench", folders[0], Sampling(), size.requests, length, size.dtype, options, accelerator
    )


async def elsewhere(size: Size, folders: list[Path]) -> Texts:
    """What the other engine generates."""
    found: Texts = []
    async with started(other := engine(size, folders, drafts=False)):
        for version, folder in enumerate(folders):
            await load(other, version + 1, folder)
            batches = [
                await run(other, halves(requests(size, batch))[1], False) for batch in range(size.batches)
            ]
            found.append([_texts(batch) for batch in batches])
    return found


def _texts(batch: Batch) -> list[FinishedText]:
    texts = [finished_text(asked, got) for asked, got in batch.pairs]
    return [text for text in texts if text is not None]


async def here(size: Size, folders: list[Path], ended: Texts | None) -> list[list[Batch]]:
    """By scale, the batches of the engine that drafts. `ended`: what it is told of, if anything."""
    found: list[list[Batch]] = []
    async with started(ours := engine(size, folders, drafts=True)):
        for version, folder in enumerate(folders):
            await load(ours, version + 1, folder)
            found.append([])
            for batch in range(size.batches):
                if ended is not None:
                    ours.learn(ended[version][batch])
                found[-1].append(await run(ours, halves(requests(size, batch))[0], True))
            print(f"{folder.name}: {[one.tail_tokens_per_step for one in found[-1]]}", flush=True)
    return found


def figures(size: Size, alone: list[list[Batch]], told: list[list[Batch]]) -> list[Figure]:
    """For each scale: with siblings elsewhere, beside without."""
    rows = []
    for number, (plain, batches) in enumerate(zip(alone, told, strict=True)):
        kept, before = _kept(batches), _kept(plain)
        ours, theirs = ([one.tail_tokens_per_step for one in of] for of in (batches, plain))
        deviation = statistics.stdev(a / b for a, b in zip(ours, theirs, strict=True))
        name = (
            f"scale-{size.scales[number]:g}, siblings elsewhere too, {kept:.0%} of drafts kept (without "
            f"{before:.0%}): a response in a step (ratio ± {deviation:.2f} over {size.batches} batches)"
        )
        rows.append(Figure(name, statistics.mean(ours), "tokens", statistics.mean(theirs)))
    return rows


def _kept(batches: Sequence[Batch]) -> float:
    return sum(one.tail_kept for one in batches) / max(1, sum(one.tail_drafted for one in batches))


def main() -> None:
    options = parser(__doc__).parse_args()
    base = ON_CUDA if torch.cuda.is_available() else ON_CPU
    size = replace(base, prompts=2 * base.prompts, batches=BATCHES)
    root = Path(tempfile.mkdtemp(prefix="rljob-bench-", dir="/dev/shm"))
    try:
        folders = model(size, root)
        ended = asyncio.run(elsewhere(size, folders))
        alone = asyncio.run(here(size, folders, None))
        told = asyncio.run(here(size, folders, ended))
        record("speculation_elsewhere", figures(size, alone, told), options.out)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
