"""A Hugging Face causal language model with a fixed number of slots, one sequence in each.

Guarantees, on CPUs with one thread: what comes out of a slot depends on that slot's tokens and the weights
alone, bit for bit, whatever the other slots hold and whichever slot it is. Every token, of a prompt or
generated, goes through one computation of one shape: (slots, 1) tokens against (slots, length) keys, those
that a slot may not see masked. So a response is the same in one piece or continued elsewhere after an abort.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.utils import logging as transformers_logging

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.weights.contents import check_same_model, tensor_shapes
from rljob_runtime.weights.model_files import loading
from rljob_runtime.weights.torch_engine_limits import check_attention, check_reloading

_ATTENTION = "rljob_slots"
"""Name under which transformers finds `_attend`."""


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """In the form of transformers' attention functions, for one query in each slot: the heads that share a
    head of keys stand as queries beside each other. transformers would copy all keys and values for each of
    them, which took most of a step's time."""
    slots, heads, _, size = query.shape
    shared = query.reshape(slots, key.shape[1], heads // key.shape[1], size)
    found = torch.nn.functional.scaled_dot_product_attention(
        shared, key, value, attn_mask=attention_mask, scale=scaling
    )
    return found.reshape(slots, 1, heads, value.shape[-1]), None


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, shape (slots, heads, length, head size); a new entry goes to each slot's
    own position."""

    def __init__(self, positions: torch.Tensor, length: int) -> None:
        super().__init__()
        self._positions = positions
        self._rows = torch.arange(len(positions))
        self._length = length

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        slots, heads, _, key_size = key_states.shape
        self.keys = key_states.new_zeros(slots, heads, self._length, key_size)
        self.values = value_states.new_zeros(slots, heads, self._length, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys[self._rows, :, self._positions] = key_states[:, :, 0]
        self.values[self._rows, :, self._positions] = value_states[:, :, 0]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # Columns that the mask covers, and the first of them: always all.
        return self._length, 0

    def get_seq_length(self) -> int:
        return self._length

    def get_max_length(self) -> int:
        return self._length


class SlotModel:
    """The model and its KV cache."""

    def __init__(self, folder: Path, slots: int, length: int, dtype: str) -> None:
        """Read the model in `folder`; `length` is the most tokens of one sequence.

        Raises `UnsupportedModel` where the engine cannot run the model or it cannot hold such sequences.
        """
        self.slots = slots
        self.length = length
        transformers_logging.disable_progress_bar()
        with loading(folder):
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
            )
        if model._supports_attention_backend:
            transformers.AttentionInterface.register(_ATTENTION, _attend)
            model.set_attn_implementation(_ATTENTION)
        self._model = model.eval()
        _check_length(self._model.config, length, folder)
        check_attention(folder, self._model, length)
        self._shapes = tensor_shapes(folder)
        check_reloading(folder, self._model, self._shapes)
        self._dtype = getattr(torch, dtype)
        self._positions = torch.zeros(slots, dtype=torch.int64)
        self._columns = torch.arange(length)
        layers = [_SlotLayer(self._positions, length) for _ in range(self._model.config.num_hidden_layers)]
        self._cache = Cache(layers=layers)

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> torch.Tensor:
        """Put one token into each slot at its position; the logits of the tokens that follow.

        `tokens` and `positions` have shape (slots,); the result (slots, vocabulary), float32. An entry at
        position p sees what the slot got at positions 0 to p, so a sequence starts over by starting at 0.
        """
        # In place: the layers of the cache hold this very tensor.
        self._positions.copy_(torch.from_numpy(positions))
        hidden = self._columns[None, :] > self._positions[:, None]
        mask = torch.zeros(self.slots, 1, 1, self.length, dtype=self._dtype)
        mask.masked_fill_(hidden[:, None, None, :], torch.finfo(self._dtype).min)
        output = self._model(
            input_ids=torch.from_numpy(tokens)[:, None],
            position_ids=self._positions[:, None],
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Replace the weights by those of the `*.safetensors` in `folder`.

        Raises `FileNotFoundError` or `ValueError`, before anything is changed, when they are not the
        weights of this model.
        """
        check_same_model(self._shapes, folder)
        target = self._model.state_dict()
        for name, tensor in read_tensors(folder).items():
            # A tied head may be stored as well; the model has it as its input embedding.
            if name in self._shapes:
                target[name].copy_(tensor)


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the `*.safetensors` in `folder`, by name."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            tensors.update({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
    return tensors


def _check_length(config: Any, length: int, folder: Path) -> None:
    if length > config.max_position_embeddings:
        raise UnsupportedModel(
            f"{folder}: sequences of {length} tokens asked for, "
            f"the model takes {config.max_position_embeddings}"
        )
