"""How fast the last responses of a batch come with speculation, on one vLLM engine.

Batches of groups with long-tailed lengths run without speculation (the baseline), with drafts from each
response's own text (ngram), and with drafts from finished siblings too (suffix), with the same prompts and
lengths. On a GPU all of it runs twice: with drafts that are made on the CPU, for which vLLM gives up
asynchronous scheduling, and with drafts that are made on the device. It ends with an error where vLLM cannot
make them there.
The tail begins when 90 % of a batch's responses have ended; before it nothing is drafted.

How much of the drafts is kept depends on the texts. There is no trained model here, so texts are made by one
with random weights: its blocks add little, so that a token follows mostly from the one before, and its output
head is scaled: the larger the scale, the surer it is of its next token and the more its text goes in circles.
Each scale stands for a share of kept drafts, which the figures name; what share a model has must be measured
with that model.

On a machine with an NVIDIA GPU model and batches are larger, and the file is speculation_tail_cuda.json. One
run prints the tokens/s of the tail without speculation, with drafts of the CPU and with those of the device.
With `--wide` the model is eight layers as wide as a 70 B model's: steps of few requests are then bound by
reading weights, not by launches. It takes 60 GB of main memory, and a GPU with 78 GiB.

    python -m tests.bench.speculation_tail [--wide] [--out FOLDER]
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from msgspec import structs
from safetensors.torch import load_file, save_file

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.protocol import Request, Sampling
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.samples import Generation
from tests.bench.figures import RESULTS, Figure, record
from tests.support.runtime.engines import load, started
from tests.support.runtime.tiny_models import published

SAMPLES, PROMPT_TOKENS = 8, 32
BLOCKS = 0.1
"""What the blocks' outputs are multiplied with."""
CHECKED = 4
"""Responses of a batch, the longest, whose log-probabilities are compared with the Hugging Face model's."""


@dataclass(frozen=True)
class Size:
    """What is run."""

    prompts: int
    batches: int
    median_tokens: int
    most_tokens: int
    hidden: int
    layers: int
    vocabulary: int
    dtype: str
    scales: tuple[float, ...]
    """Of the output head."""

    @property
    def requests(self) -> int:
        return self.prompts * SAMPLES


ON_CPU = Size(8, 3, 40, 440, 256, 4, 512, "float32", (4.0, 24.0, 128.0))
ON_CUDA = Size(32, 3, 200, 2048, 1024, 16, 151936, "bfloat16", (24.0, 128.0))
WIDE = Size(32, 3, 200, 2048, 8192, 8, 151936, "bfloat16", (24.0, 128.0))


@dataclass(frozen=True)
class Mode:
    """A way to draft."""

    drafts: dict[str, Any] | None = None
    """Which; None: none."""
    on_device: bool = False


MODES = {"without": Mode(), "ngram": Mode({"ngram": {}}), "suffix": Mode({"suffix": {}})}
ON_DEVICE = {
    "ngram on the device": Mode({"ngram": {}}, True),
    "suffix on the device": Mode({"suffix": {}}, True),
}


@dataclass
class Batch:
    """What one batch took, in tokens and seconds."""

    body_tokens: int = 0
    body_seconds: float = 0.0
    tail_tokens: int = 0
    tail_seconds: float = 0.0
    tail_drafted: int = 0
    tail_kept: int = 0
    pairs: list[tuple[Request, Generation]] = field(default_factory=list)

    @property
    def tail_rate(self) -> float:
        return self.tail_tokens / self.tail_seconds

    @property
    def tail_tokens_per_step(self) -> float:
        """Tokens that a response of the tail got in a step: one, and what was kept of a draft."""
        return self.tail_tokens / (self.tail_tokens - self.tail_kept)

    @property
    def body_rate(self) -> float:
        return self.body_tokens / self.body_seconds

    @property
    def seconds(self) -> float:
        return self.body_seconds + self.tail_seconds


def model(size: Size, folder: Path) -> list[Path]:
    """A folder with weights for each scale; the first is a whole model."""
    heads = size.hidden // 64
    config = transformers.Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=3 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=64,
        max_position_embeddings=2 * size.most_tokens,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        made = transformers.Qwen3ForCausalLM(config).to(getattr(torch, size.dtype))
    folders = [published(folder / f"scale-{scale:g}") for scale in size.scales]
    made.save_pretrained(folders[0], max_shard_size="100GB")
    del made
    torch.cuda.empty_cache()
    weights = load_file(folders[0] / "model.safetensors")
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= BLOCKS
    head = weights["lm_head.weight"]
    for scale, place in zip(size.scales, folders, strict=True):
        save_file(weights | {"lm_head.weight": head * scale}, place / "model.safetensors", {"format": "pt"})
    return folders


def requests(size: Size, batch: int) -> list[Request]:
    """The groups of a batch, one after another; a request's `max_tokens` is its length."""
    random = np.random.default_rng([batch, size.prompts])
    prompts = random.integers(0, size.vocabulary, (size.prompts, PROMPT_TOKENS)).astype(np.int32)
    lengths = np.exp(random.normal(np.log(size.median_tokens), 1.0, size.requests))
    longest = np.clip(lengths, 8, size.most_tokens).astype(int)
    return [
        Request(f"{batch}-{number}-{time.monotonic_ns()}", prompts[number // SAMPLES], int(tokens), number)
        for number, tokens in enumerate(longest)
    ]


async def run(engine: VllmEngine, asked: list[Request], drafts: bool) -> Batch:
    """One batch, from an idle engine to an idle engine."""
    result, ended = Batch(), 0
    tail_began = before = 0.0
    tokens_before = (await engine.load_snapshot()).generated_tokens
    counts = (0, 0)

    async def one(request: Request) -> tuple[Request, Generation]:
        nonlocal ended, tail_began, counts
        got = await engine.submit(request)
        ended += 1
        if ended == len(asked) * 9 // 10:
            tail_began = time.perf_counter()
            result.body_tokens = (await engine.load_snapshot()).generated_tokens - tokens_before
            counts = await engine._live_core().drafting_counts() if drafts else counts
        return request, got

    before = time.perf_counter()
    result.pairs = await asyncio.gather(*[one(request) for request in asked])
    end = time.perf_counter()
    result.body_seconds, result.tail_seconds = tail_began - before, end - tail_began
    result.tail_tokens = sum(len(got.tokens) for _, got in result.pairs) - result.body_tokens
    if drafts:
        after = await engine._live_core().drafting_counts()
        result.tail_drafted, result.tail_kept = after[0] - counts[0], after[1] - counts[1]
    return result


async def measure(size: Size, mode: str, folders: list[Path]) -> list[list[Batch]]:
    """By scale, the batches of one engine."""
    cuda, chosen = torch.cuda.is_available(), (MODES | ON_DEVICE)[mode]
    drafts = chosen.drafts
    speculation = None if drafts is None else drafts | {"atMostRunning": size.requests // 8}
    options = {"gpuMemoryUtilization": 0.7} | ({"speculation": speculation} if speculation else {})
    engine = VllmEngine(
        mode,
        folders[0],
        Sampling(),
        size.requests,
        PROMPT_TOKENS + size.most_tokens,
        size.dtype,
        VllmOptions.model_validate(options),
        "nvidia" if cuda else "cpu",
        device_drafts=chosen.on_device,
    )
    found = []
    async with started(engine):
        if engine._live_core().drafts_on_device != chosen.on_device:
            raise SystemExit("vLLM cannot make drafts on this device; the engine's log says why")
        for version, folder in enumerate(folders):
            await load(engine, version + 1, folder)
            warm = [structs.replace(one, max_tokens=40) for one in requests(size, 1000)]
            await run(engine, warm, drafts is not None)
            found.append(
                [
                    await run(engine, requests(size, batch), drafts is not None)
                    for batch in range(size.batches)
                ]
            )
            print(
                f"{mode}, {folder.name}: {[round(one.tail_rate) for one in found[-1]]} tokens/s", flush=True
            )
    return found


@torch.inference_mode()
def apart(folder: Path, whole: Path, batches: list[Batch]) -> float:
    """The mean difference of the engine's log-probabilities from the Hugging Face model's, in nats, over the
    longest responses of the last batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reference = transformers.AutoModelForCausalLM.from_pretrained(whole, dtype="auto").to(device).eval()
    reference.load_state_dict(load_file(folder / "model.safetensors", device=device))
    longest = sorted(batches[-1].pairs, key=lambda pair: -len(pair[1].tokens))[:CHECKED]
    found = []
    for asked, got in longest:
        tokens = torch.from_numpy(np.concatenate([asked.tokens, got.tokens]).astype(np.int64)).to(device)
        logits = reference(tokens[None]).logits[0, len(asked.tokens) - 1 : -1].float()
        expected = logits.log_softmax(-1).gather(1, tokens[len(asked.tokens) :, None])[:, 0]
        found.append(np.abs(expected.cpu().numpy() - got.log_probs))
    return float(np.concatenate(found).mean())


def ways(cuda: bool) -> Iterable[str]:
    """In the order in which they run: a clock that ends the run ends the slowest, the CPU's on a GPU."""
    drafting = [mode for mode in MODES if mode != "without"]
    return ["without", *(ON_DEVICE if cuda else ()), *drafting]


def figures(size: Size, found: dict[str, list[list[Batch]]]) -> list[Figure]:
    """For each scale: tail, body and whole batch of each way to draft that is there, against none."""
    told = []
    for number, plain in enumerate(found["without"]):
        for mode in (mode for mode in found if mode != "without"):
            batches = found[mode][number]
            kept = sum(one.tail_kept for one in batches) / max(1, sum(one.tail_drafted for one in batches))
            name = f"{mode}, scale-{size.scales[number]:g}, {kept:.0%} of drafts kept"

            def mean(
                pick: Callable[[Batch], float],
                what: str,
                unit: str,
                name: str = name,
                batches: list[Batch] = batches,
                plain: list[Batch] = plain,
            ) -> Figure:
                ours, theirs = ([pick(one) for one in those] for those in (batches, plain))
                deviation = statistics.stdev(a / b for a, b in zip(ours, theirs, strict=True))
                what = f"{name}: {what} (ratio ± {deviation:.2f} over {size.batches} batches)"
                return Figure(what, statistics.mean(ours), unit, statistics.mean(theirs))

            told += [
                mean(lambda one: one.tail_rate, "tokens of the last 10 % of responses", "tokens/s"),
                mean(lambda one: one.tail_tokens_per_step, "each of them in a step", "tokens"),
                mean(lambda one: one.body_rate, "tokens before", "tokens/s"),
                mean(lambda one: one.seconds, "whole batch", "s"),
            ]
    return told


def parity(folders: list[Path], found: dict[str, list[list[Batch]]]) -> list[Figure]:
    """For each scale: how far log-probabilities of responses with drafts are from the Hugging Face model's,
    beside those without."""
    return [
        Figure(
            f"{mode}, {folder.name}: mean |engine - trainer| log-probability",
            apart(folder, folders[0], drafted),
            "nats",
            apart(folder, folders[0], plain),
        )
        for mode in found
        if mode.startswith("suffix")
        for folder, drafted, plain in zip(folders, found[mode], found["without"], strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wide", action="store_true", help="on a GPU: a model that is bound by its weights")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    if options.wide and not cuda:
        parser.error("--wide needs a GPU; there is none")
    size = (WIDE if options.wide else ON_CUDA) if cuda else ON_CPU
    file = "speculation_tail_cuda" if cuda else "speculation_tail"
    root = Path(tempfile.mkdtemp(prefix="rljob-bench-", dir="/dev/shm"))
    try:
        folders = model(size, root)
        found: dict[str, list[list[Batch]]] = {}
        for mode in ways(cuda):
            found[mode] = asyncio.run(measure(size, mode, folders))
            record(file, figures(size, found), options.out, show=False)
        record(file, figures(size, found) + parity(folders, found), options.out)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
