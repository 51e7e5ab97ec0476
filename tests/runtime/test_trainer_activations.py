"""What is kept of the forward pass: less memory with the same gradients."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.compilers import nop
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from rljob_api.model import ActivationCheckpointing, Experts
from rljob_runtime.trainer import compilation
from rljob_runtime.trainer.attention import LayOut
from rljob_runtime.trainer.model import load_policy
from rljob_runtime.trainer.packing import pack
from rljob_runtime.trainer.policy import Distribution
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.varlen import Varlen
from tests.support.runtime import varlen_on_cpu
from tests.support.runtime.families import family_model
from tests.support.runtime.live_memory import Made
from tests.support.runtime.tiny_models import Family, tiny_model
from tests.support.runtime.trainer_ranks import groups

FAMILIES: tuple[Family, ...] = ("qwen3", "qwen3_moe")


def run(
    folder: Path, what: ActivationCheckpointing, offload: bool = False, experts: Experts = "grouped"
) -> tuple[int, int, dict[str, torch.Tensor]]:
    """Bytes alive between forward and backward pass, how many of the layers' results are, the gradients."""
    group = groups(1, seed=1, samples=8)[0]
    packed = pack([group.prompt] * 8, [each.tokens for each in group.samples], torch.device("cpu"))
    policy = load_policy(folder, Distribution(), torch.float32, what, experts, offload)
    outputs: list[StorageWeakRef] = []
    for layer in policy.model.get_decoder().layers[:-1]:
        layer.register_forward_hook(
            lambda module, inputs, out: outputs.append(StorageWeakRef(out.untyped_storage()))
        )
    with Made() as made:
        log_probs, _ = policy(packed)
    alive, layers = made.alive(), sum(not each.expired() for each in outputs)
    log_probs.square().sum().backward()
    gradients = {name: each.grad for name, each in policy.named_parameters() if each.grad is not None}
    return alive, layers, gradients


@pytest.mark.parametrize("family", FAMILIES)
def test_less_is_kept_and_the_gradients_are_the_same(tmp_path: Path, family: Family) -> None:
    folder = tiny_model(tmp_path / "model", family)
    none, selective, full = (run(folder, what) for what in ("none", "selective", "full"))
    assert full[0] < 0.5 * selective[0]
    assert selective[0] < 0.75 * none[0]
    for other in (selective, full):
        assert other[2].keys() == none[2].keys()
        for name, gradient in none[2].items():
            torch.testing.assert_close(other[2][name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "fields", "experts"),
    [
        ("gpt_oss", {}, "grouped"),
        ("gpt_oss", {}, "eager"),
        ("olmo", {"clip_qkv": 0.3}, "grouped"),
        ("olmoe", {"clip_qkv": 0.3}, "grouped"),
    ],
)
def test_products_that_layers_write_over(
    tmp_path: Path, kind: str, fields: dict[str, Any], experts: Experts
) -> None:
    """As with biases of experts, and with queries, keys and values that are clipped."""
    folder = family_model(tmp_path / "model", kind, **fields)
    none, selective = (run(folder, what, experts=experts) for what in ("none", "selective"))
    assert selective[0] < 0.75 * none[0]
    assert selective[2].keys() == none[2].keys()
    for name, gradient in none[2].items():
        torch.testing.assert_close(selective[2][name], gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_of_layers_wait_in_main_memory(tmp_path: Path, family: Family) -> None:
    """Here the device's memory is main memory as well: what layers got is gone, a copy is there instead."""
    folder = tiny_model(tmp_path / "model", family)
    full, offloaded = run(folder, "full"), run(folder, "full", offload=True)
    assert full[1] == 1, "the input of the second layer"
    assert offloaded[1] == 0
    for name, gradient in full[2].items():
        assert torch.equal(offloaded[2][name], gradient), name


def divided(
    compiled: Any, function: Callable[..., Any], dynamic: bool, options: Mapping[str, Any]
) -> Callable[..., Any]:
    """`function`, `compiled` by torch and divided into a forward and a backward part as its compiler divides
    it, without machine code, whose making takes a minute."""
    mark = options.get("joint_custom_pre_pass")

    def partition(joint: Any, inputs: Any, **given: Any) -> Any:
        if mark is not None:
            mark(joint.graph)
        return min_cut_rematerialization_partition(joint, inputs, **given)

    backend = aot_autograd(
        fw_compiler=nop, bw_compiler=nop, partition_fn=partition, decompositions=select_decomp_table()
    )
    made: Callable[..., Any] = compiled(function, backend=backend, dynamic=dynamic)
    return made


def kept_by_compiled(
    folder: Path, what: ActivationCheckpointing, lay_out: LayOut, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int, dict[str, torch.Tensor]]:
    """Bytes that compiled layers keep for the backward pass, how many operators are compiled, and the
    gradients."""
    torch._dynamo.reset()
    counters.clear()
    group = groups(1, seed=1, samples=8)[0]
    tokens = [each.tokens for each in group.samples]
    packed = pack([group.prompt] * 8, tokens, torch.device("cpu"), lay_out)
    policy = load_policy(folder, Distribution(), torch.float32, what)
    with monkeypatch.context() as patched:
        patched.setattr(compilation.torch, "compile", partial(divided, torch.compile))
        compilation.compile_layers(policy.model)
    weights = {each.untyped_storage()._cdata for each in policy.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if (storage := tensor.untyped_storage())._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        log_probs, _ = policy(packed)
    taken = sum(each.nbytes() for each in kept.values())
    log_probs.square().sum().backward()
    gradients = {name: each.grad for name, each in policy.named_parameters() if each.grad is not None}
    return taken, counters["stats"]["calls_captured"], gradients


# A vLLM engine of this process may have turned the compiler off.
@torch._dynamo.config.patch(disable=False)
@pytest.mark.parametrize("lay_out", [Rectangles.of, Varlen.of], ids=["attention apart", "attention inside"])
def test_compiled_layers_keep_results_of_products(
    tmp_path: Path, lay_out: LayOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is compiled where nothing is computed again: a layer that is not keeps as little."""
    folder = tiny_model(tmp_path / "model")
    everything, _, gradients = run(folder, "none")
    with varlen_on_cpu.installed():
        compiled, operators, _ = kept_by_compiled(folder, "none", lay_out, monkeypatch)
        taken, same, found = kept_by_compiled(folder, "selective", lay_out, monkeypatch)
    assert same == operators > 0
    assert 0.3 * everything < taken < 0.8 * min(compiled, everything), (taken, compiled, everything)
    for name, gradient in gradients.items():
        assert (found[name] - gradient).abs().max() < 1e-5 * gradient.abs().max(), name


class _Calls(TorchDispatchMode):
    """Counts the calls of the kernel for samples of any lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function.name() == "torch_attn::_varlen_attn"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("what", "times"), [("selective", 1), ("none", 1), ("full", 2)])
def test_attention_is_computed_again_by_full_alone(
    tmp_path: Path, what: ActivationCheckpointing, times: int
) -> None:
    """The kernel is one that torch knows only after it was asked for, which is after the model was loaded."""
    policy = load_policy(tiny_model(tmp_path / "model"), Distribution(), torch.float32, what)
    group = groups(1, seed=1, samples=3)[0]
    tokens = [each.tokens for each in group.samples]
    packed = pack([group.prompt] * 3, tokens, torch.device("cpu"), Varlen.of)
    with varlen_on_cpu.installed(), _Calls() as calls:
        policy(packed).log_probs.sum().backward()
    assert calls.count == times * len(policy.model.get_decoder().layers)
