"""What trainer ranks need before their first step: imported, and made once, in the server that forks them.

Only for `rank_context`: nothing here may start a thread, which would not be in a forked process.
"""

import gc

import torch.distributed.tensor
import torch.distributed.tensor.parallel  # noqa: F401
import transformers.generation
import transformers.models.gemma3.modeling_gemma3
import transformers.models.llama.modeling_llama
import transformers.models.qwen2.modeling_qwen2
import transformers.models.qwen3.modeling_qwen3
import transformers.models.qwen3_moe.modeling_qwen3_moe  # noqa: F401
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import rljob_runtime.trainer.rank  # noqa: F401

# A table that transformers makes when the first model of a process is loaded.
get_checkpoint_conversion_mapping("qwen3")
# A garbage collection in a rank would write to all that it has from here, and so copy it.
gc.collect()
gc.freeze()
