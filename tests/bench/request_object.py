"""What a request costs vLLM's engine core until it is scheduled, beside a step with many of them.

The same request is taken from what the front end sends, made into vLLM's own object, and given to the
scheduler as engines run it; times are of CPU, the median of requests. A response of a usual length is
generated in so many steps: of as many requests, each step makes a few. What a request that costs nothing
would save is their share of a step, whose CPU is measured in the same run.

    python -m tests.bench.request_object
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.engines.vllm_warm_up import as_sampled
from tests.bench.figures import Figure, parser, record
from tests.bench.step_scheduling import BLOCKS, IN_FLIGHT, KINDS, LONGEST, milliseconds
from tests.support.runtime.tiny_models import tiny_model
from tests.support.runtime.vllm_schedulers import Steps

REQUESTS = 2000
TOKENS = 307
"""The mean length of a response in `tests/bench/peers`."""
OURS = "as engines run"


def sent(number: int, random: np.random.Generator) -> EngineCoreRequest:
    """What an engine's front end sends of a request."""
    parameters = SamplingParams(
        **as_sampled(Sampling()), max_tokens=TOKENS, ignore_eos=True, detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    return EngineCoreRequest(
        request_id=f"r{number}",
        prompt_token_ids=random.integers(0, 60, random.integers(64, 192)).tolist(),
        mm_features=None,
        sampling_params=parameters,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def microseconds(model: Path) -> dict[str, float]:
    """Of CPU for a request, by what is done with it."""
    steps = Steps(model, KINDS[OURS], requests=REQUESTS, blocks=BLOCKS, tokens=16384, longest=LONGEST)
    random, decoder = np.random.default_rng(5), MsgpackDecoder(EngineCoreRequest)
    found: dict[str, list[float]] = {"decoded": [], "made": [], "given to the scheduler": []}
    for number in range(REQUESTS):
        frames = MsgpackEncoder().encode(sent(number, random))
        times = [time.thread_time_ns()]
        arrived = decoder.decode(frames)
        times.append(time.thread_time_ns())
        request = Request.from_engine_core_request(arrived, steps.hasher)
        times.append(time.thread_time_ns())
        steps.scheduler.add_request(request)
        times.append(time.thread_time_ns())
        for name, took in zip(found, np.diff(times), strict=True):
            found[name].append(took / 1e3)
    return {name: statistics.median(each) for name, each in found.items()}


def main() -> None:
    options = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder) / "model", tied=True)
        # First, while the collector of garbage has no other requests to look through.
        step = statistics.median(milliseconds(model, IN_FLIGHT[0])[OURS])
        parts = microseconds(model)
    figures = [Figure(f"a request, {name}", took, "µs") for name, took in parts.items()]
    new = IN_FLIGHT[0] / TOKENS * sum(parts.values()) / 1e3
    figures.append(Figure(f"{IN_FLIGHT[0]} requests: those that a step begins", new, "ms", step))
    record("request_object", figures, options.out)


if __name__ == "__main__":
    main()
