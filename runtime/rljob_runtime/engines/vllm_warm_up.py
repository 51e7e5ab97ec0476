"""Has vLLM warm its kernels up with the sampling of a job's requests.

By itself each new engine draws with every option that a request could have, so that no later one waits for a
kernel to be compiled: with empty caches, as in a new pod, those of options that no request of the job has are
most of what an H200's engine does after it has captured its graphs (docs/measurements.md).

Guarantees: what is drawn with in the warm-up is what the job's requests have; a kernel that is needed later
all the same, as by an evaluation that cuts at `topP` where training does not, is compiled then; a version of
vLLM that warms up in another way is left as it is.
"""

import json
import os
from typing import Any

from rljob_runtime.engines.protocol import Sampling

VARIABLE = "RLJOB_WARM_UP"
"""Environment variable of an engine's processes: parameters of `as_sampled`, in JSON."""
_ASKED = "for_sampler_warmup"
"""vLLM's method that tells what to warm up with."""


def as_sampled(sampling: Sampling) -> dict[str, Any]:
    """Arguments of vLLM's `SamplingParams` that decide which kernels a request needs."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        # Of the drawn token alone.
        "logprobs": 0,
    }


def warm_up_as_sampled() -> None:
    """Have engines that start in this process warm up as its environment says by then, or as vLLM does by
    itself where that says nothing. Imports vLLM."""
    # Here, as vLLM is imported once its environment is set.
    from vllm.sampling_params import SamplingParams

    own: Any = SamplingParams
    if not hasattr(own, _ASKED):
        return
    usual = getattr(own, _ASKED)

    def asked() -> Any:
        # Looked at now: this process may have been there before it was known what it is to run.
        told = os.environ.get(VARIABLE)
        return usual() if told is None else own(**json.loads(told))

    setattr(own, _ASKED, staticmethod(asked))
