"""Whether the trainer can score a model exactly, found by trying the model without its weights.

The trainer computes attention itself, and log-probabilities from hidden states and the output head alone.
What a model has beyond that is found by its code: a forward pass on torch's meta device, where nothing is
computed, tells what each layer asks of attention; a pass of a small head on drawn hidden states tells what is
done with logits behind it.

Guarantees: a model is taken where attention is causal, or causal within the window that its layer says, with
a cap of scores and sinks as its call of attention tells, nothing else mixes tokens, and logits are what the
output head gives, or that times a factor or capped; else it is refused, with the reason. Of models whose code
looks at numbers attention is tried up to there. No weights are read or made.
"""

import inspect
import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest.attention_limits import ANOTHER_MODEL, UNKNOWN
from rljob_runtime.manifest.logit_factor import LOGIT_CAP, logit_cap, logit_factor
from rljob_runtime.manifest.meta_model import on_meta
from rljob_runtime.manifest.rotations import check_rotations
from rljob_runtime.weights.attention_kind import CAP, SINKS
from rljob_runtime.weights.model_files import loading

_TRIAL = "rljob_trial"
"""Name under which transformers finds the attention that only notes what it is asked for."""
_TOKENS = 8
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_WITHOUT = "write null there if its weights were trained without it"
_SMALL = 16
"""Tokens of the head that is tried."""


class _Fault(NamedTuple):
    """Why the trainer does not score a model."""

    what: str
    """What the model has."""
    cure: str = ANOTHER_MODEL
    """What a person can do."""


class _Mask(NamedTuple):
    """What a layer's mask is made of."""

    stands_for_it: Tensor
    sees: Callable[..., Any]
    """transformers' rule: whether, of a sample and a head, a query sees a key, all by their numbers."""
    window: int | None

    @property
    def is_causal(self) -> bool:
        """Whether a query sees the keys up to its own within the window, and no others."""
        far = self.window or 1_000_000
        expected = {(far, far): True, (far, far + 1): False, (far, 1): True, (far, 0): self.window is None}
        # Not on the meta device, where there are no numbers.
        with torch.device("cpu"):
            return all(
                bool(self.sees(*(torch.tensor(each) for each in (0, 0, *pair)))) == seen
                for pair, seen in expected.items()
            )


class _Asked:
    """What the layers of one forward pass ask of attention; nothing is computed."""

    def __init__(self) -> None:
        self.layers = 0
        self.heads: set[tuple[int, ...]] = set()
        """Numbers of heads of queries and of keys, and their sizes."""
        self.faults: list[_Fault] = []
        self.caps: set[float | None] = set()
        """Of scores."""
        self.sinks = 0
        """Layers that have some."""
        self._masks: list[_Mask] = []

    def mask(self, *, mask_function: Any, local_size: int | None = None, **options: Any) -> Tensor:
        """In the form of transformers' functions that make masks."""
        made = torch.empty(1, 1, _TOKENS, _TOKENS, device="meta")
        self._masks.append(_Mask(made, mask_function, local_size))
        return made

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        packing: object = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """In the form of transformers' attention functions."""
        self.layers += 1
        self.heads.add((query.shape[1], key.shape[1], query.shape[3], value.shape[3]))
        self.caps.add(softcap)
        self.sinks += s_aux is not None
        self.faults += (_Fault(f"attention with {name}") for name in UNKNOWN if options.get(name) is not None)
        if packing is None:
            self.faults.append(_Fault(f"an attention call of its own kind ({type(module).__name__})"))
        groups = getattr(module, "num_key_value_groups", None)
        if groups is not None and groups * key.shape[1] != query.shape[1]:
            self.faults.append(
                _Fault(
                    f"a num_key_value_heads in config.json that is not that of its layers, {key.shape[1]},",
                    f"write {key.shape[1]} there",
                )
            )
        mask = next((each for each in self._masks if each.stands_for_it is attention_mask), None)
        if mask is not None and mask.window is not None and mask.window != sliding_window:
            self.faults.append(
                _Fault(
                    f"sliding_window {mask.window} in config.json, which {type(module).__name__} of "
                    f"transformers {transformers.__version__} does not pass on to its attention,",
                    f"write null there where no sample is longer, else {ANOTHER_MODEL}",
                )
            )
        elif mask is None or not mask.is_causal:
            self.faults.append(_Fault("attention that is not causal, or has a mask of its own,"))
        return query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1]), None


def check_computation(folder: Path, longest: int) -> None:
    """Raise `UnsupportedModel` where the trainer cannot score samples of up to `longest` tokens by the model
    of a folder."""
    with loading(folder):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    check_trainable(folder, config)
    check_rotations(config.get_text_config(), longest)


def check_trainable(folder: Path, config: Any) -> None:
    """Raise `UnsupportedModel` where the model of a folder, whose configuration in transformers this is, has
    what the trainer does not compute."""
    with loading(folder):
        fault = _untrainable(config)
    if fault is not None:
        raise UnsupportedModel(
            f"{folder}: a model with {fault.what} is not supported by the trainer: {fault.cure}"
        )


def _untrainable(config: Any) -> _Fault | None:
    text = config.get_text_config()
    for name in (CAP, LOGIT_CAP):
        if (cap := getattr(text, name, None)) is not None and not 0 < cap < math.inf:
            return _Fault(f"{name} {cap} in config.json", "write a number above 0 there, or null for no cap")
    if not 0 < logit_factor(text) < math.inf:
        return _Fault(
            "a factor of logits in config.json (logit_scale, logits_scaling) that is not above 0",
            "write a number above 0 there, as the config.json has that came with the weights",
        )
    other = set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES
    if other:
        return _Fault(f"layers of type {', '.join(sorted(other))}")
    if config.is_encoder_decoder:
        return _Fault("an encoder")
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        which = f"transformers {transformers.__version__} has no causal language model"
        return _Fault(f"model_type {config.model_type} in config.json, of which {which},")
    asked = _Asked()
    transformers.AttentionInterface.register(_TRIAL, asked.attend)
    AttentionMaskInterface.register(_TRIAL, asked.mask)
    try:
        model = on_meta(_plain(config), dtype=torch.bfloat16, attn_implementation=_TRIAL)
    except KeyError as error:
        # As of architectures that look attention up in a table of their own.
        if error.args != (_TRIAL,):
            raise
        return _Fault(f"its own attention (model_type {config.model_type}), which cannot be packed,")
    model.eval()
    return _own_part(model) or _attention_fault(model, asked) or _head_fault(model)


def _own_part(model: Any) -> _Fault | None:
    """What a model's modules tell before they are called."""
    kind, decoder, head = type(model).__name__, model.get_decoder(), model.get_output_embeddings()
    if not model._supports_attention_backend:
        return _Fault(f"its own attention ({kind}), which cannot be packed,")
    mixing = next((name for name, each in model.named_modules() if isinstance(each, nn.Conv1d)), None)
    if mixing is not None:
        return _Fault(f"a convolution over tokens ({mixing})")
    if type(head) is not nn.Linear:
        return _Fault(f"an output head of its own kind ({kind})")
    if decoder is None or decoder is model:
        return _Fault(f"a decoder that is not apart from its output head ({kind})")
    if "position_ids" not in inspect.signature(decoder.forward).parameters:
        return _Fault(f"positions of its own ({kind}), which cannot be packed,")
    return None


def _attention_fault(model: Any, asked: _Asked) -> _Fault | None:
    """What is wrong with what a model's layers ask of attention."""
    if model._can_set_experts_implementation():
        # Experts one after the other would look at which tokens they get.
        model.set_experts_implementation("grouped_mm")
    tokens = torch.zeros(1, _TOKENS, dtype=torch.int64, device="meta")
    try:
        with torch.device("meta"), torch.no_grad():
            # With a mask, without which transformers looks for packed samples in the numbers of positions.
            model.get_decoder()(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False, packing=asked
            )
    except (NotImplementedError, RuntimeError):
        # Its code looks at numbers, as that of a few routers does: of the layers up to there it is known what
        # they ask, and the trainer sees the others' calls as they come.
        return asked.faults[0] if asked.faults else None
    if asked.faults:
        return asked.faults[0]
    # Kernels are chosen, and samples shared by ranks, by what all layers have.
    if len(asked.heads) > 1:
        return _Fault("heads of attention that differ from layer to layer, in number or size,")
    text = model.config.get_text_config()
    if asked.layers < text.num_hidden_layers:
        return _Fault(f"attention in {asked.layers} of its {text.num_hidden_layers} layers")
    if asked.caps != {cap := getattr(text, CAP, None)}:
        return _Fault(f"{CAP} {cap} in config.json, which {_passed_over(model)} its attention,", _WITHOUT)
    sinks = [name for name, _ in model.named_parameters() if name.endswith(SINKS)]
    if len(sinks) != asked.sinks:
        return _Fault(
            f"{len(sinks)} weights for sinks of attention, of which {asked.sinks} are passed on to it,"
        )
    return None


def _head_fault(model: Any) -> _Fault | None:
    """What is done with hidden states on their way to logits, beside the output head."""
    head, decoder = model.get_output_embeddings(), model.get_decoder()
    text = model.config.get_text_config()
    cap = logit_cap(text)
    small = nn.Linear(head.in_features, _SMALL, bias=head.bias is not None)
    parent, _, name = next(name for name, each in model.named_modules() if each is head).rpartition(".")
    model.get_submodule(parent).register_module(name, small)
    # Large enough that a cap on logits is felt.
    generator = torch.Generator().manual_seed(0)
    hidden = 30 * torch.randn(1, _TOKENS, head.in_features, generator=generator)
    decoder.forward = lambda *arguments, **options: _Hidden((hidden,))
    fault = _Fault(f"logits that are not those of its output head alone ({type(model).__name__})")
    try:
        with torch.no_grad():
            logits = model(input_ids=torch.zeros(1, _TOKENS, dtype=torch.int64), use_cache=False).logits
            plain = small(hidden)
            expected, uncapped = (logit_factor(text) * each for each in (_capped(plain, cap), plain))
    except (NotImplementedError, RuntimeError):
        # Another module has a part in it, whose weights have no numbers.
        return fault
    if logits.shape != expected.shape:
        return fault
    if torch.allclose(logits, expected):
        return None
    if torch.allclose(logits, uncapped):
        return _Fault(f"{LOGIT_CAP} {cap} in config.json, which {_passed_over(model)} its logits,", _WITHOUT)
    return fault


def _capped(logits: Tensor, cap: float | None) -> Tensor:
    return logits if cap is None else cap * (logits / cap).tanh()


def _passed_over(model: Any) -> str:
    return f"{type(model).__name__} of transformers {transformers.__version__} does not apply to"


class _Hidden(tuple[Tensor]):
    """Hidden states in the place of what a decoder gives, which has nothing else."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


def _plain(config: Any) -> Any:
    """A configuration of the same layers, whose rotations do not look at numbers, of which there are none."""
    config = deepcopy(config)
    given = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for parameters in (given, *(each for each in given.values() if isinstance(each, dict))):
        if parameters.get("rope_type") in ("dynamic", "longrope"):
            parameters["rope_type"] = "default"
    return config
