"""What keeping the KV cache over weight updates gains, and what it does to log-probabilities.

Requests run at once, each with a prompt of `context` tokens and forced tokens after it. Their engine is
brought to new weights several times while they run, with `kvAfterUpdate: recompute` (the baseline) and with
`keep`, each in an engine of its own. Measured for each number of requests and length of context:
- the stall: from the beginning of the pause to the end of `resume`;
- the gap: from the beginning of the pause until there is one more token for each request;
- what an update costs after the stall: the tokens of running requests, prompts included, whose KV is computed
  anew, and the time that takes, both from the requests' own records;
- |engine - reference| log-probability of each token, the reference being a trainer's: it has the weights of
  the token's version and nothing in a cache. By tokens since the last update. Where nothing is kept that is
  rounding.

The updates are steps of stochastic gradient ascent by the sign of the gradient, which is what Adam's first
step is: each weight moves by the learning rate, in the direction that makes responses of a positive random
advantage likelier. How far that moves log-probabilities is measured too, and is what an error by kept KV is
to be compared with. Weights are random, and larger than at a usual initialization, so that attention matters.

    python -m tests.bench.kv_after_update                       two layers on the CPU, float32
    python tests/bench/kv_after_update.py --gpu --out FOLDER    of the shape of Qwen3-0.6B, bfloat16; needs
                                                                60 GiB of the GPU's memory

Neither Ray nor a network is needed. Figures are written, and printed, each time that an engine is done;
after `--seconds` no further case is begun.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "crds"))
sys.path.insert(0, str(Path(__file__).parents[2] / "runtime"))
from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.protocol import Request, Sampling, WeightRef
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.samples import Generation
from tests.bench.figures import Figure, record

UPDATES = 3
SINCE = ((1, 8), (9, 16), (17, 10**6))
"""Tokens since the last update, from and to."""
_SHARPER = 3.0
"""Times the weights of the embedding, which is the output head too."""
Ended = list[tuple[Request, Generation]]


@dataclass(frozen=True)
class Scale:
    """What differs between the machines."""

    shape: tuple[int, ...]
    """Vocabulary, hidden size, width, layers, heads, key-value heads, size of a head."""
    spread: float
    """Standard deviation of the weights."""
    engine_dtype: str
    device: str
    cases: tuple[tuple[int, int], ...]
    """Requests at once, and tokens of each prompt."""
    between: int
    """Tokens of each response between two updates."""
    scored: int
    """Responses of a case that are compared with the reference."""
    rates: tuple[float, ...]
    """Learning rates of the updates."""
    rounds: int
    """Times that each case runs, with other prompts; the last time is compared with the reference."""

    @property
    def response(self) -> int:
        return self.between * (UPDATES + 1)


TINY = Scale(
    (128, 64, 192, 2, 4, 2, 32), 0.1, "float32", "cpu", ((16, 64), (16, 256)), 24, 16, (1e-4, 1e-3), 2
)
GPU = Scale(
    (151936, 1024, 3072, 28, 16, 8, 128), 0.04, "bfloat16", "cuda", ((512, 256), (128, 2048)), 96, 24,
    (1e-6, 1e-5), 2,
)  # fmt: skip


class Model:
    """The reference, and what weights are made with. Its arithmetic is in float32 on all machines."""

    def __init__(self, scale: Scale) -> None:
        names = (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim",
        )  # fmt: skip
        config = AutoConfig.for_model(
            "qwen3", **dict(zip(names, scale.shape, strict=True)), max_position_embeddings=4096,
            tie_word_embeddings=True, initializer_range=scale.spread,
        )  # fmt: skip
        torch.manual_seed(0)
        if scale.device == "cpu":
            # The engine computes on the same cores.
            torch.set_num_threads(1)
        self._scale = scale
        self._model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(scale.device)
        self._model.eval()

    def save(self, folder: Path) -> Path:
        """The whole model, as an engine starts from."""
        # A sharper head: at random weights every token would be about as likely as any other.
        with torch.no_grad():
            self._model.get_input_embeddings().weight *= _SHARPER
        # The weights alone: the model's buffers, rotary frequencies among them, stay in float32.
        dtype = getattr(torch, self._scale.engine_dtype)
        stored = {name: weights.to(dtype) for name, weights in self._model.named_parameters()}
        self._model.save_pretrained(folder, state_dict=stored)
        # Also a version that may be loaded.
        (folder / ".lock").touch()
        return folder

    def use(self, folder: Path) -> None:
        """Take the weights in `folder`."""
        self._model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        self._model.tie_weights()

    def log_probs(self, asked: Request, got: Generation) -> torch.Tensor:
        """Of each token of a response, shape (tokens,)."""
        prompt = len(asked.tokens)
        tokens = torch.from_numpy(np.concatenate([asked.tokens, got.tokens]).astype(np.int64))
        tokens = tokens.to(self._scale.device)
        logits = self._model(tokens[None, :-1], logits_to_keep=len(got.tokens)).logits[0]
        chosen: torch.Tensor = -torch.nn.functional.cross_entropy(logits, tokens[prompt:], reduction="none")
        return chosen

    def scored(self, asked: Request, got: Generation) -> NDArray[np.float32]:
        """The same, on the CPU."""
        with torch.inference_mode():
            return self.log_probs(asked, got).cpu().numpy()

    def updates(self, ended: Ended, rate: float, root: Path) -> list[Path]:
        """Folders with the weights of one update after the other, from those that the model has."""
        scale, folders = self._scale, []
        advantages = np.random.default_rng(1).standard_normal((UPDATES, len(ended)))
        for update in range(UPDATES):
            for (asked, got), advantage in zip(ended, advantages[update], strict=True):
                torch.autograd.backward(-float(advantage) * self.log_probs(asked, got).mean())
            with torch.no_grad():
                # Float32, as a trainer's own weights: in bfloat16 most of a step would be lost to rounding.
                for weights in self._model.parameters():
                    weights -= rate * weights.grad.sign()
            self._model.zero_grad()
            folders.append(root / f"rate-{rate}-update-{update + 1}")
            self.publish(folders[-1], getattr(torch, scale.engine_dtype))
        return folders

    def publish(self, folder: Path, dtype: torch.dtype) -> None:
        """The weights as engines load them."""
        folder.mkdir(exist_ok=True)
        # A tied head is the embedding, and is stored once.
        stored = {name: tensor.to(dtype).cpu().clone() for name, tensor in self._model.named_parameters()}
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / ".lock").touch()


@dataclass
class Measured:
    """Of one case: an engine's way, a learning rate, so many requests with so much context."""

    stalls: list[float] = field(default_factory=list)
    """Seconds, one for each update."""
    gaps: list[float] = field(default_factory=list)
    """Likewise."""
    recomputed: list[float] = field(default_factory=list)
    """Seconds, one for each request."""
    anew: list[int] = field(default_factory=list)
    """Tokens whose KV was computed anew, one for each request."""
    rates: list[float] = field(default_factory=list)
    """Tokens a second, one for each round."""
    apart: dict[tuple[int, int], list[NDArray[np.float32]]] = field(default_factory=lambda: defaultdict(list))
    """|engine - reference| by tokens since the last update."""


Key = tuple[bool, float, int, int]
"""Whether KV is kept, learning rate, requests, context."""


@dataclass
class Bench:
    """Models, weights, and what is measured."""

    scale: Scale
    out: Path
    root: Path
    until: float
    model: Model
    base: Path
    versions: dict[float, list[Path]] = field(default_factory=dict)
    """By learning rate."""
    moved: dict[float, float] = field(default_factory=dict)
    """By learning rate: how far one update moves log-probabilities, in nats, mean."""
    found: dict[Key, Measured] = field(default_factory=dict)

    async def measure(self, keeps: bool) -> None:
        """All cases, in an engine of their own."""
        scale, began = self.scale, time.monotonic()
        slots = max(requests for requests, _ in scale.cases)
        length = max(context for _, context in scale.cases) + scale.response
        tiny = scale.device == "cpu"
        options = VllmOptions() if tiny else VllmOptions(gpu_memory_utilization=0.6)
        engine = VllmEngine(
            "keep" if keeps else "recompute", self.base, Sampling(), slots, length, scale.engine_dtype,
            options, "cpu" if tiny else "nvidia", keep_kv=keeps,
        )  # fmt: skip
        try:
            await engine.start(0)
            print(f"engine {engine.name} started in {time.monotonic() - began:.0f} s", flush=True)
            ended = await self._responses(engine)
            if not self.versions:
                self._update(ended)
            for rate in scale.rates:
                for requests, context in scale.cases:
                    measured = self.found.setdefault((keeps, rate, requests, context), Measured())
                    for number in range(scale.rounds):
                        if time.monotonic() > self.until:
                            print("time is spent", flush=True)
                            return
                        last = await self._round(engine, rate, requests, context, measured, number)
                    self._score(engine, rate, last[: scale.scored], measured)
        finally:
            await engine.close()

    async def _responses(self, engine: VllmEngine) -> Ended:
        """Some of the first weights, to learn from. They also warm the engine up."""
        asked = self._asked("first", 16, self.scale.cases[0][1], 0)
        return list(zip(asked, await asyncio.gather(*map(engine.submit, asked)), strict=True))

    def _asked(self, name: str, requests: int, context: int, seed: int) -> list[Request]:
        random, scale = np.random.default_rng([seed, requests, context]), self.scale
        prompts = random.integers(0, scale.shape[0], (requests, context)).astype(np.int32)
        return [
            Request(f"{name}-{number}", prompt, scale.response, number, exact=True)
            for number, prompt in enumerate(prompts)
        ]

    def _update(self, ended: Ended) -> None:
        for rate in self.scale.rates:
            self.model.use(self.base)
            self.versions[rate] = self.model.updates(ended, rate, self.root)
            scores = []
            for folder in [self.base, *self.versions[rate]]:
                self.model.use(folder)
                scores.append(np.concatenate([self.model.scored(*pair) for pair in ended]))
            self.moved[rate] = float(np.abs(np.diff(scores, axis=0)).mean())
            print(f"rate {rate}: an update moves log-probabilities by {self.moved[rate]:.2g}", flush=True)

    async def _round(
        self, engine: VllmEngine, rate: float, requests: int, context: int, measured: Measured, number: int
    ) -> Ended:
        """Requests that run while the engine is brought to one version after the other."""
        await engine.pause("abort")
        await engine.load(WeightRef(0, "shm", str(self.base)))
        await engine.resume()
        asked = self._asked(f"{rate}-{requests}-{number}", requests, context, number + 1)
        before, began = await _generated(engine), time.perf_counter()
        tasks = [asyncio.create_task(engine.submit(one)) for one in asked]
        for version, folder in enumerate(self.versions[rate], start=1):
            await _reach(engine, before + version * self.scale.between * requests)
            started = time.perf_counter()
            await engine.pause("keep")
            have = await _generated(engine)
            await engine.load(WeightRef(version, "shm", str(folder)))
            await engine.resume()
            measured.stalls.append(time.perf_counter() - started)
            await _reach(engine, have + requests)
            measured.gaps.append(time.perf_counter() - started)
        got = await asyncio.gather(*tasks)
        measured.rates.append(requests * self.scale.response / (time.perf_counter() - began))
        for each in got:
            assert each.timing is not None
            measured.recomputed.append(each.timing.recomputed)
            tokens = sum(context + span.start for span in each.spans[1:])
            measured.anew.append(tokens if each.timing.recomputed else 0)
        if not all(len(each.spans) == UPDATES + 1 for each in got):
            raise RuntimeError("a response did not see all updates")
        return list(zip(asked, got, strict=True))

    def _score(self, engine: VllmEngine, rate: float, ended: Ended, measured: Measured) -> None:
        """Compare each token that came after an update with the reference."""
        for version, folder in enumerate(self.versions[rate], start=1):
            self.model.use(folder)
            for asked, got in ended:
                [span] = [span for span in got.spans if span.version == version]
                apart = np.abs(got.log_probs - self.model.scored(asked, got))[span.start : span.end]
                for first, last in SINCE:
                    measured.apart[first, last].append(apart[first - 1 : last])

    def write(self) -> None:
        """What there is so far of both ways."""
        figures = []
        for rate in self.scale.rates:
            name = f"learning rate {rate:g}"
            figures.append(
                Figure(f"{name}: an update moves log-probabilities by", self.moved[rate], "nats, mean")
            )
            for requests, context in self.scale.cases:
                keep, anew = (self.found.get((keeps, rate, requests, context)) for keeps in (True, False))
                if keep is not None and anew is not None and keep.apart:
                    figures += _parity(f"{name}, context {context}", keep, anew)
        for requests, context in self.scale.cases:
            keep, anew = (self._merged(keeps, requests, context) for keeps in (True, False))
            if keep.gaps and anew.gaps:
                figures += _time(requests, context, keep, anew)
        file = "kv_after_update" if self.scale.device == "cpu" else "kv_after_update_cuda"
        record(file, figures, self.out)

    def _merged(self, keeps: bool, requests: int, context: int) -> Measured:
        """Of all learning rates: time does not depend on them."""
        merged = Measured()
        for (kept, _, *case), each in self.found.items():
            if kept == keeps and case == [requests, context]:
                merged.stalls += each.stalls
                merged.gaps += each.gaps
                merged.recomputed += each.recomputed
                merged.anew += each.anew
                merged.rates += each.rates
        return merged


def _parity(name: str, keep: Measured, anew: Measured) -> Iterator[Figure]:
    """Both ways' distance from the reference."""
    for first, last in SINCE:
        ours, base = (float(np.concatenate(each.apart[first, last]).mean()) for each in (keep, anew))
        which = f"tokens {first}-{last}" if last < SINCE[-1][1] else f"tokens from {first} on"
        yield Figure(f"{name}: engine against reference, {which} after an update", ours, "nats, mean", base)
    worst = [
        max(float(part.max(initial=0.0)) for parts in each.apart.values() for part in parts)
        for each in (keep, anew)
    ]
    yield Figure(f"{name}: the same, furthest of all", worst[0], "nats", worst[1])


def _time(requests: int, context: int, keep: Measured, anew: Measured) -> Iterator[Figure]:
    """Both ways' time."""
    name = f"{requests} requests, context {context}"
    stalls = [1e3 * float(np.median(each.stalls)) for each in (keep, anew)]
    yield Figure(f"{name}: stall of an update, median", stalls[0], "ms", stalls[1])
    gaps = [1e3 * float(np.median(each.gaps)) for each in (keep, anew)]
    yield Figure(f"{name}: from its beginning to a token for each request, median", gaps[0], "ms", gaps[1])
    tokens = [requests * float(np.mean(each.anew)) / UPDATES for each in (keep, anew)]
    yield Figure(f"{name}: KV computed anew in an update, all requests", tokens[0], "tokens", tokens[1])
    again = [1e3 * float(np.mean(each.recomputed)) / UPDATES for each in (keep, anew)]
    yield Figure(f"{name}: time of that in an update, mean of the requests", again[0], "ms", again[1])
    rates = [float(np.median(each.rates)) for each in (keep, anew)]
    yield Figure(f"{name}: tokens, {UPDATES} updates included", rates[0], "tokens/s", rates[1])


async def _generated(engine: VllmEngine) -> int:
    return (await engine.load_snapshot()).generated_tokens


async def _reach(engine: VllmEngine, tokens: int) -> None:
    """Wait until so many tokens were generated."""
    async with asyncio.timeout(300):
        while await _generated(engine) < tokens:  # noqa: ASYNC110 - progress is told when asked
            await asyncio.sleep(0.001)


async def run(scale: Scale, out: Path, seconds: float, root: Path) -> None:
    until = time.monotonic() + seconds
    model = Model(scale)
    bench = Bench(scale, out, root, until, model, model.save(root / "base"))
    for keeps in (False, True):
        if time.monotonic() < until:
            await bench.measure(keeps)
            bench.write()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true", help="else a model of two layers, on the CPU")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--rounds", type=int, help="times that each case runs; default: 2")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", Path(__file__).parent / "results"))
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        scale = GPU if options.gpu else TINY
        scale = replace(scale, rounds=options.rounds or scale.rounds)
        asyncio.run(run(scale, options.out, options.seconds, Path(root)))


if __name__ == "__main__":
    main()
