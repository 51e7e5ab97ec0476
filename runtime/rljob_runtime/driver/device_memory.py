"""What is told of a trainer whose accelerator has no memory left: how much there was, and which fields make
it need less. Pure."""

import math
import re

from rljob_api import RLJob
from rljob_api.context_parallel import ContextParallel, SharedByNeed

_SIZES = (
    re.compile(
        r"Tried to allocate (?P<asked>[\d.]+ \w+)\. \w+ \d+ has a total capacity of (?P<all>[\d.]+ \w+)"
        r" of which (?P<free>[\d.]+ \w+) is free"
    ),
    re.compile(
        r"Tried to allocate (?P<asked>[\d.]+ \w+) \(NPU \d+; (?P<all>[\d.]+ \w+) total capacity;"
        r".*?; (?P<free>[\d.]+ \w+) free;"
    ),
)
"""In the words of the `OutOfMemoryError` of torch, and of torch-npu."""
_MODEL, _PARALLEL = "spec.training.model", "spec.training.parallel"
_ENGINE = "spec.training.rollout.engine.vllm.gpuMemoryUtilization"


def no_memory_left(job: RLJob, words: str, shared: bool) -> str:
    """In one line. `words`: of torch's error; `shared`: engines are on the trainer's accelerators too."""
    found = next(filter(None, (each.search(words) for each in _SIZES)), None)
    sizes = f" ({found['asked']} more of {found['all']}, of which {found['free']} are free)" if found else ""
    return f"its accelerator has no memory left{sizes}: {_advice(job, shared)}"


def _advice(job: RLJob, shared: bool) -> str:
    """What to change, the cheapest first; only what is not so already, and may be so in this job."""
    training = job.spec.training
    cap, least = training.parallel.max_tokens_per_micro_batch, _least_cap(job)
    ways = []
    if cap > least:
        ways.append(f"lower {_PARALLEL}.maxTokensPerMicroBatch ({cap}; at least {least})")
    if training.model.recomputed != "full":
        ways.append(f"set {_MODEL}.activationCheckpointing: full")
    if shared and (vllm := training.rollout.engine.vllm) is not None:
        ways.append(f"lower {_ENGINE} ({vllm.gpu_memory_utilization:g})")
    if not training.parallel.cpu_offload:
        ways.append(f"set {_PARALLEL}.cpuOffload: true, with which steps take many times as long")
    return ", or ".join(ways or ["give the trainer more accelerators, or a smaller model"])


def _least_cap(job: RLJob) -> int:
    """The smallest `maxTokensPerMicroBatch` with which the longest sample can be trained, by as many ranks as
    may share it."""
    parallel, longest = job.spec.training.parallel, job.spec.training.longest_sample_tokens
    # Where nothing is said, a sample above the cap is shared.
    shared = parallel.context_parallel or ContextParallel(hybrid=SharedByNeed())
    # A shared sample is padded to a multiple of twice the ranks that share it.
    return min(longest, 2 * math.ceil(longest / (2 * shared.largest_degree(job.spec.data_ranks))))
