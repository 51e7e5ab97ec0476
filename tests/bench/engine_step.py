"""A step of our vLLM engine against one of bare vLLM, with many running requests.

Each case generates the same work: so many requests at once, each with a random prompt and a forced number of
tokens, on a random model. `bare` is vLLM's own AsyncLLM, asked for no log-probabilities: what an engine could
reach; `bare, log-probabilities` asks it for those of the drawn tokens; `ours, sent by token` is our engine
where vLLM sends each token and its log-probability by its own; `ours` our engine as a job has it. The first
three are measured in one engine, then the last one twice in another, then the first three in a third, in
reverse order. `ours` alone records when requests were scheduled, as jobs do. Its log-probabilities under a
pause and aborts are compared with those of the same texts as prompts.

    python tests/bench/engine_step.py --out FOLDER        on a GPU: model of the shape of Qwen3-0.6B, 64 and
                                                          512 requests; 300 s, of which three engine starts
                                                          take half; needs 60 GiB of its memory
    python tests/bench/engine_step.py --tiny --out FOLDER on a CPU

Neither Ray nor a network is needed. Figures are written, and printed, each time that an engine is done;
after `--seconds` nothing more is begun.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "crds"))
sys.path.insert(0, str(Path(__file__).parents[2] / "runtime"))
from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.protocol import Request, Sampling
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.fleet.reporting import report_seconds
from rljob_runtime.samples import Generation
from tests.bench.figures import Figure, record

BARE, ASKED, BY_TOKEN, OURS = "bare", "bare, log-probabilities", "ours, sent by token", "ours"
GOAL = {OURS: "≥ 0.95 × bare vLLM without log-probabilities"}


@dataclass(frozen=True)
class Work:
    """What a case generates."""

    requests: int
    tokens: int
    vocabulary: int

    def prompts(self) -> list[NDArray[np.int32]]:
        random = np.random.default_rng(3)
        lengths = random.integers(64, 192, self.requests)
        return [random.integers(0, self.vocabulary, length).astype(np.int32) for length in lengths]


@dataclass
class Results:
    """Figures so far, written after each."""

    folder: Path
    file: str
    until: float
    rates: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """Tokens a second, by number of requests and case."""
    other: list[Figure] = field(default_factory=list)

    def over(self) -> bool:
        """Whether the time for measuring is spent."""
        return time.monotonic() > self.until

    def write(self) -> None:
        figures = []
        for (requests, case), rates in sorted(self.rates.items()):
            bare = self.rates.get((requests, BARE))
            mean, base = float(np.mean(rates)), None if bare is None else float(np.mean(bare))
            name = f"{requests} requests, {case}"
            figures.append(Figure(f"{name}: tokens", mean, "tokens/s", base, GOAL.get(case)))
            step = 1e3 * requests / mean
            figures.append(Figure(f"{name}: a step", step, "ms", base and 1e3 * requests / base))
        record(self.file, figures + self.other, self.folder)


def write_model(folder: Path, tiny: bool) -> int:
    """A random model; returns the size of its vocabulary."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    size = (128, 64, 192, 2, 4, 2, 32) if tiny else (151936, 1024, 3072, 28, 16, 8, 128)
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim",
    )  # fmt: skip
    shape = dict(zip(names, size, strict=True))
    config = AutoConfig.for_model("qwen3", **shape, max_position_embeddings=4096, tie_word_embeddings=True)
    torch.manual_seed(0)
    # On the CPU: this process is to leave the GPU to the engines.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if tiny else torch.bfloat16)
    model.save_pretrained(folder)
    return size[0]


@asynccontextmanager
async def engine(folder: Path, tiny: bool, requests: int, held: bool) -> AsyncIterator[VllmEngine]:
    """One of ours as a job has it, or with tokens that are sent one by one, and nothing recorded of requests:
    bare vLLM is measured in it."""
    begin = time.monotonic()
    made = VllmEngine(
        "held" if held else "by-token", folder, Sampling(), requests, 1024,
        "float32" if tiny else "bfloat16", VllmOptions(), "cpu" if tiny else "nvidia",
        timed=held, hold_outputs=held,
    )  # fmt: skip
    try:
        await made.start(0)
        core = made._live_core()
        config: Any = core._llm.vllm_config
        facts = {
            "outputs held back": core.holds_outputs,
            "asynchronous scheduling": config.scheduler_config.async_scheduling,
            "tokens a step": config.scheduler_config.max_num_batched_tokens,
            "tokens of KV cache": core.kv_tokens,
            "second model runner": getattr(config, "use_v2_model_runner", None),
        }
        print(f"engine started in {time.monotonic() - begin:.0f} s: {facts}", flush=True)
        if held != core.holds_outputs:
            raise RuntimeError("this vLLM cannot hold outputs back: there is nothing to compare")
        # As in a job: somebody wants to know how far the requests are.
        made.on_progress(lambda _, __: None, report_seconds(1))
        yield made
    finally:
        await made.close()


async def bare(engine: VllmEngine, work: Work, asked: bool) -> int:
    """Tokens that vLLM itself generates."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    llm: Any = engine._live_core()._llm

    async def one(index: int, prompt: NDArray[np.int32]) -> int:
        parameters = SamplingParams(
            max_tokens=work.tokens, ignore_eos=True, temperature=1.0, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **({"logprobs": 0, "flat_logprobs": True} if asked else {}),
        )  # fmt: skip
        count = 0
        name = f"bare-{index}-{time.monotonic_ns()}"
        async for output in llm.generate({"prompt_token_ids": prompt.tolist()}, parameters, name):
            count = len(output.outputs[0].token_ids)
        return count

    return sum(await asyncio.gather(*(one(*each) for each in enumerate(work.prompts()))))


async def ours(engine: VllmEngine, work: Work) -> int:
    """Tokens that our engine generates."""
    tag = time.monotonic_ns()
    asked = [
        Request(f"{tag}-{index}", prompt, work.tokens, index, exact=True)
        for index, prompt in enumerate(work.prompts())
    ]
    got = await asyncio.gather(*(engine.submit(each) for each in asked))
    if any(len(each.log_probs) != len(each.tokens) for each in got):
        raise RuntimeError("a token without its log-probability")
    return sum(len(each.tokens) for each in got)


async def measure(engine: VllmEngine, works: list[Work], cases: list[str], results: Results) -> None:
    """One pass over the cases; the first time in an engine it warms up before."""
    run: dict[str, Callable[[Work], Awaitable[int]]] = {
        BARE: lambda work: bare(engine, work, False),
        ASKED: lambda work: bare(engine, work, True),
        BY_TOKEN: lambda work: ours(engine, work),
        OURS: lambda work: ours(engine, work),
    }
    for work in works:
        for case in dict.fromkeys(cases):
            await run[case](Work(work.requests, 24, work.vocabulary))
        for case in cases:
            if results.over():
                print("time is spent", flush=True)
                break
            # The prompts are those of the case before: their KV cache is not to be found.
            await engine._live_core()._llm.reset_prefix_cache()
            begin, busy = time.perf_counter(), time.process_time()
            tokens = await run[case](work)
            seconds = time.perf_counter() - begin
            if tokens != work.requests * work.tokens:
                raise RuntimeError(f"{tokens} tokens came of {work}")
            busy = (time.process_time() - busy) / seconds
            print(
                f"{work.requests} requests, {case}: {tokens / seconds:.0f} tokens/s, "
                f"{1e3 * seconds / work.tokens:.2f} ms a step, front end busy {busy:.0%}",
                flush=True,
            )
            results.rates.setdefault((work.requests, case), []).append(tokens / seconds)
    results.write()


async def interrupted(engine: VllmEngine, vocabulary: int) -> list[tuple[Request, Generation]]:
    """Responses that saw a pause and, half of them, an abort, with what was asked for."""
    work = Work(16, 200, vocabulary)
    asked = [Request(f"check-{i}", prompt, 200, i, exact=True) for i, prompt in enumerate(work.prompts())]
    before = (await engine.load_snapshot()).generated_tokens
    tasks = [asyncio.create_task(engine.submit(each)) for each in asked]
    async with asyncio.timeout(60):
        while (await engine.load_snapshot()).generated_tokens < before + 16 * 20:  # noqa: ASYNC110 - progress is told when asked
            await asyncio.sleep(0.002)
    await engine.pause("keep")
    await engine.resume()
    await asyncio.gather(*(engine.abort(each.request_id) for each in asked[::2]))
    return list(zip(asked, await asyncio.gather(*tasks), strict=True))


async def compare(engine: VllmEngine, pairs: list[tuple[Request, Generation]], results: Results) -> None:
    """How far log-probabilities of responses are from those of the same tokens as part of prompts."""
    from vllm.sampling_params import SamplingParams

    llm: Any = engine._live_core()._llm
    parameters = SamplingParams(max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False)
    far, neighbours = [], []
    for asked, got in pairs:
        text = {"prompt_token_ids": np.concatenate([asked.tokens, got.tokens]).tolist()}
        async for output in llm.generate(text, parameters, f"again-{asked.request_id}"):
            # The first token has none, and an empty place.
            scored = np.array(output.prompt_logprobs.logprobs[-len(got.tokens) :])
        far.append(np.abs(scored - got.log_probs))
        neighbours.append(np.abs(scored[1:] - got.log_probs[:-1]))
    finishes = [got.finish for _, got in pairs]
    print(
        f"compared {sum(map(len, far))} tokens of {len(pairs)} responses, {finishes.count('abort')} aborted"
    )
    unit = "nats, mean difference"
    results.other = [
        Figure("log-probabilities against those as a prompt", float(np.concatenate(far).mean()), unit),
        Figure("the same, of the next token", float(np.concatenate(neighbours).mean()), unit),
    ]
    results.write()


async def run(options: argparse.Namespace, folder: Path, vocabulary: int) -> None:
    name = "engine_step" if options.tiny else "engine_step_cuda"
    results = Results(options.out, name, time.monotonic() + options.seconds)
    works = [Work(requests, options.tokens, vocabulary) for requests in options.requests]
    most, pairs = max(options.requests), []
    cases = [BARE, ASKED, BY_TOKEN]
    async with engine(folder, options.tiny, most, held=False) as by_token:
        await measure(by_token, works, cases, results)
    async with engine(folder, options.tiny, most, held=True) as held:
        pairs = await interrupted(held, vocabulary)
        await measure(held, works, [OURS, OURS], results)
    if not results.over():
        async with engine(folder, options.tiny, most, held=False) as by_token:
            await compare(by_token, pairs, results)
            await measure(by_token, works, cases[::-1], results)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, on the CPU")
    parser.add_argument("--requests", type=int, nargs="*")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", Path(__file__).parent / "results"))
    )
    options = parser.parse_args()
    options.requests = options.requests or ([4, 16] if options.tiny else [64, 512])
    options.tokens = options.tokens or (64 if options.tiny else 512)
    with tempfile.TemporaryDirectory() as scratch:
        begin = time.monotonic()
        vocabulary = write_model(Path(scratch), options.tiny)
        print(f"model made in {time.monotonic() - begin:.0f} s", flush=True)
        asyncio.run(run(options, Path(scratch), vocabulary))


if __name__ == "__main__":
    main()
