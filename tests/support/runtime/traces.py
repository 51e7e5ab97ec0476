"""Length traces, made by hand."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rljob_runtime.data.length_trace import FORMAT


def lines(tokens: NDArray[Any], most_tokens: int, first_uid: int = 0, **header: Any) -> list[dict[str, Any]]:
    """The lines of a trace: `tokens` has shape (prompts, samples)."""
    samples = tokens.shape[1]
    head = {"format": FORMAT, "samples_per_prompt": samples, "max_response_tokens": most_tokens, **header}
    places = np.ndindex(*tokens.shape)
    return [
        head,
        *(
            {"uid": first_uid + uid, "index": index, "response_tokens": int(tokens[uid, index])}
            for uid, index in places
        ),
    ]


def written(path: Path, content: list[dict[str, Any]]) -> Path:
    """A file with these lines."""
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in content))
    return path


def made(path: Path, prompts: int, samples: int, most_tokens: int, seed: int = 0) -> NDArray[np.int64]:
    """Write a trace of lengths from 1 to `most_tokens`; the lengths, of shape (prompts, samples)."""
    tokens = np.random.default_rng(seed).integers(1, most_tokens + 1, (prompts, samples))
    written(path, lines(tokens, most_tokens))
    return tokens
