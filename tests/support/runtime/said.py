"""Responses as they are kept, made up."""

from typing import Any

import msgspec

from rljob_runtime.trace.record.sample_log import SampleLine


def line(step: int, uid: int = 0, index: int = 0, **changes: Any) -> SampleLine:
    """A response that repeats its prompt."""
    usual = SampleLine(
        step=step, time=1000.0, uid=uid, epoch=0, row=uid, index=index, prompt="<bos>ab<sep>",
        response="ab<eos>", left_out=0, prompt_tokens=4, tokens=3, finish="stop", reward=1.0, failure=None,
        advantage=0.0, engine="fast-0", seconds=1.5, first_version=2, last_version=3, trained_with=3,
    )  # fmt: skip
    return msgspec.structs.replace(usual, **changes)
