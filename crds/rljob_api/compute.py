"""How the trainer uses its devices and its processors."""

from typing import Literal

from pydantic import Field

from rljob_api.base import Model


class Compute(Model):
    """How the trainer uses its devices and its processors. None of it changes what is learned, beyond
    rounding."""

    attention: Literal["auto", "rectangles"] = "auto"
    """What computes attention. auto: a kernel that takes samples of any lengths, where the device has one
    that gives the right numbers with the model's heads (bfloat16 on NVIDIA and Ascend), and rectangles
    elsewhere. rectangles: samples of like length are padded to their longest."""
    compile: bool | None = None
    """Compile each layer of the model, and what is done with logits, by torch.compile: fewer and larger
    kernels, after about half a minute at the first step. It needs a C compiler in the image. Unset: on NVIDIA
    accelerators where there is one, for models without experts, where no adapter is trained, and with
    parallel.tensorParallel of 1: with more it was tried over gloo on CPUs, and not run over NCCL."""
    logits_mi_b: int = Field(default=1024, ge=1, le=1_048_576, alias="logitsMiB")
    """Most memory that a trainer rank's logits take at a time, in MiB, in the number format of
    model.dtype. Where all logits of a forward pass fit, none is computed a second time for the backward
    pass."""
    hold_weights: bool | None = None
    """Gather the weights, and reduce the gradients over ranks, once for each optimizer update, and not in
    every forward and backward pass of it: less is sent and converted where an update has several passes. It
    takes each rank the memory of all weights in model.dtype, and of all gradients in float32. Where ranks
    share samples (parallel.contextParallel) they do so in any case. Unset: on accelerators of whose memory
    that takes a tenth at most."""
    pause_garbage_collection: bool = True
    """Let Python look for unused objects between steps alone, and not while a step is trained."""
    bind_cores: bool = True
    """Keep each trainer rank on the cores of the NUMA node that its accelerator is attached to. Without an
    accelerator, and where the node is not known, ranks run on all cores."""
