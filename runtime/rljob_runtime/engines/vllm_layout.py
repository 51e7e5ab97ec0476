"""Where a version's tensors lie in a model of vLLM's, found by having the model load them without a copy.

Guarantees: a layout is returned only where a version can be copied into the model as it stands. vLLM's own
loaders said where each part goes; every parameter is covered; no layer keeps its weights in another form
than they are loaded in, or something that it derived from them; and samples of each part, as the model has
them now, are those of the folder that it was loaded from. Else `NotPlain` says what stands against it, and
the model is as it was.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rljob_runtime.engines.second_set import Layout, Region, View
from rljob_runtime.weights.buckets import stored_tensors
from rljob_runtime.weights.contents import tensor_shapes

_PLAIN_METHODS = frozenset(
    {"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod", "UnquantizedFusedMoEMethod"}
    | {"FusedMoEModularMethod"}
)
"""Classes of vLLM's that multiply by weights; those of the last wrap one of the others."""
_PLAIN_LAYERS = frozenset({"Attention"})
"""Classes of layers that do something after weights were loaded which is not with the weights."""
_SAMPLES = 8
"""Rows of each part that are compared."""


class NotPlain(ValueError):
    """Versions cannot be copied into this model; the message says why."""


def find_layout(model: torch.nn.Module, folder: Path) -> Layout:
    """The layout of a model that was loaded from `folder`. Raises `NotPlain`."""
    _check_layers(model)
    files = [_Mapped(file) for file in sorted(folder.glob("*.safetensors"))]
    of_versions = tensor_shapes(folder)
    sources = {name: tensor for file in files for name, tensor in file.tensors.items() if name in of_versions}
    with _Unloaded(model) as unloaded, _Recorder() as copies, torch.no_grad():
        try:
            model.load_weights(iter(sources.items()))  # type: ignore[operator]
        except NotPlain:
            raise
        except Exception as error:
            raise NotPlain(f"its weights were not loaded for a trial: {error}") from error
    layout = _layout(unloaded, sources, copies.copies)
    _check_covered(model, layout)
    _check_samples(sources, layout)
    return layout


class _Mapped:
    """A *.safetensors of which only what is looked at is read."""

    def __init__(self, file: Path) -> None:
        with file.open("rb") as opened:
            # A copy of its own, as torch warns of memory that cannot be written to.
            memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        self.tensors = {
            each.name: torch.frombuffer(
                memory,
                dtype=getattr(torch, each.dtype),
                count=each.size // getattr(torch, each.dtype).itemsize,
                offset=each.begin,
            ).reshape(each.shape)
            for each in stored_tensors(file)
        }


class _Copy(NamedTuple):
    target: torch.Tensor
    source: torch.Tensor


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is copied to where, and copies nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies: list[_Copy] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.copies.append(_Copy(args[0], args[1]))
            return args[0]
        return func(*args, **(kwargs or {}))


class _Unloaded:
    """A model as it is before its weights are loaded, without memory for them, for as long as the body."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._layers = list(model.modules())
        self.names: dict[int, tuple[torch.nn.Module, str]] = {}
        """By storage of the tensors that there are meanwhile: layer, and name in it."""
        self.live: dict[torch.nn.Module, dict[str, torch.Tensor]] = {}
        self.unloaded: dict[torch.nn.Module, dict[str, torch.Tensor]] = {}

    def __enter__(self) -> "_Unloaded":
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
        from vllm.model_executor.model_loader.reload.meta import restore_layer_on_meta
        from vllm.model_executor.model_loader.reload.utils import get_layer_params_buffers, get_layer_tensors

        for layer in self._layers:
            info: Any = get_layerwise_info(layer)
            info.kernel_tensors = get_layer_params_buffers(layer)
            # Of newer versions of vLLM; others do not look at it.
            info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)
            self.live[layer] = get_layer_tensors(layer)
        for layer in self._layers:
            restore_layer_on_meta(layer, get_layerwise_info(layer))
            self.unloaded[layer] = get_layer_tensors(layer)
            for name, tensor in self.unloaded[layer].items():
                self.names.setdefault(tensor.untyped_storage()._cdata, (layer, name))
        return self

    def __exit__(self, *failure: object) -> None:
        from vllm.model_executor.model_loader.reload.layerwise import (
            _place_kernel_tensors,
            get_layerwise_info,
        )

        for layer in self._layers:
            info = get_layerwise_info(layer)
            if info.kernel_tensors is not None:
                _place_kernel_tensors(layer, info)
            info.reset()


def _layout(unloaded: _Unloaded, sources: dict[str, torch.Tensor], copies: list[_Copy]) -> Layout:
    origins = {tensor.untyped_storage()._cdata: name for name, tensor in sources.items()}
    live: list[torch.Tensor] = []
    numbers: dict[int, int] = {}
    regions: dict[str, list[Region]] = {name: [] for name in sources}
    for target, source in copies:
        where = unloaded.names.get(target.untyped_storage()._cdata)
        if where is None:
            continue  # to something else than the model's tensors; where it goes from there is found below
        layer, tensor_name = where
        label = f"{type(layer).__name__}.{tensor_name}"
        name = origins.get(source.untyped_storage()._cdata)
        if name is None or source.dtype != sources[name].dtype:
            raise NotPlain(f"{label} is loaded with what was computed from the weights")
        if source.shape != target.shape:
            raise NotPlain(f"{label}: {name} is spread over more than its own size")
        now, then = unloaded.live[layer].get(tensor_name), unloaded.unloaded[layer][tensor_name]
        if now is None or (now.shape, now.stride(), now.dtype) != (then.shape, then.stride(), then.dtype):
            raise NotPlain(f"{label} is kept in another form than it is loaded in")
        number = numbers.setdefault(now.data_ptr(), len(live))
        if number == len(live):
            live.append(now.data)
        place = _view(target, then)
        regions[name].append(Region(_view(source, sources[name]), number, place))
    if not live:
        raise NotPlain("none of its weights was seen to be loaded")
    return Layout(live, regions)


def _view(part: torch.Tensor, of: torch.Tensor) -> View:
    return View(int(part.storage_offset()) - int(of.storage_offset()), tuple(part.shape), part.stride())


def _check_layers(model: torch.nn.Module) -> None:
    for layer in model.modules():
        kind, method = type(layer).__name__, getattr(layer, "quant_method", None)
        if method is not None and type(method).__name__ not in _PLAIN_METHODS:
            raise NotPlain(f"{kind} multiplies by {type(method).__name__}")
        # Some methods are layers too.
        plain = kind in _PLAIN_LAYERS or kind in _PLAIN_METHODS
        if hasattr(layer, "process_weights_after_loading") and not plain:
            raise NotPlain(f"{kind} derives something from its weights")


def _check_covered(model: torch.nn.Module, layout: Layout) -> None:
    """Every parameter is loaded whole, but for what pads a vocabulary."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    covered = [0] * len(layout.live)
    for regions in layout.regions.values():
        for region in regions:
            covered[region.target] += region.place.elements
    loaded = {tensor.data_ptr(): count for tensor, count in zip(layout.live, covered, strict=True)}
    for layer in model.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            count = loaded.get(parameter.data_ptr(), 0)
            padded = isinstance(layer, VocabParallelEmbedding)
            if count == 0 or count > parameter.numel() or (count < parameter.numel() and not padded):
                part = f"{count} of {parameter.numel()} numbers"
                raise NotPlain(f"{type(layer).__name__}.{name}: {part} are seen to be loaded")


def _check_samples(sources: dict[str, torch.Tensor], layout: Layout) -> None:
    """Some rows of each part are where they should be."""
    for name, region in _parts(layout):
        source, live = region.source.of(sources[name]), region.place.of(layout.live[region.target])
        if source.dim():
            # Also the last one; the same twice is no matter.
            rows = torch.linspace(0, len(source) - 1, _SAMPLES).long()
            source, live = source[rows], live[rows.to(live.device)]
        if not torch.equal(source.to(live.device, live.dtype), live):
            raise NotPlain(f"{name} is kept in another form than it is loaded in")


def _parts(layout: Layout) -> Iterator[tuple[str, Region]]:
    for name, regions in layout.regions.items():
        for region in regions:
            yield name, region
