"""Communicators of vLLM that are made and cannot send: they say so by `disabled`, and pass over each call
without a word, so that engines would go on with memory that nobody wrote. Pure.
"""

from typing import Any

_ELSE = "or take another training.async.weightSync.transport"
_NO_NCCL = (
    "vLLM made no group of NCCL: VLLM_DISABLE_PYNCCL is set, or NCCL's library was not found. Unset that "
    f"variable, set VLLM_NCCL_SO_PATH to the library's path, {_ELSE}"
)
_NO_HCCL = (
    "vllm-ascend made no group of HCCL: its library, libhccl.so, was not found. Set HCCL_SO_PATH to its "
    f"path, {_ELSE}"
)


def working(group: Any) -> Any:
    """The communicator of vLLM or vllm-ascend. Raises `RuntimeError` where it is disabled."""
    if group.disabled:
        raise RuntimeError(_NO_HCCL if "Hccl" in type(group).__name__ else _NO_NCCL)
    return group
