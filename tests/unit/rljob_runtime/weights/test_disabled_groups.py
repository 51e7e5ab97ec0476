"""Communicators of vLLM and vllm-ascend that are disabled: they would send and receive nothing, unasked."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from rljob_runtime.engines import staging_worker
from rljob_runtime.engines.vllm_extension import WeightLoader
from rljob_runtime.weights import hccl, nccl
from rljob_runtime.weights.collective import BrokenOff, CollectiveSender, Rendezvous
from rljob_runtime.weights.hccl import HcclSender
from rljob_runtime.weights.nccl import NcclSender

NCCL = "vllm.distributed.device_communicators.pynccl"
HCCL = "vllm_ascend.distributed.device_communicators.pyhccl"

LIBRARIES = {
    "NCCL": (NcclSender, "vLLM made no group of NCCL: .*VLLM_DISABLE_PYNCCL.*VLLM_NCCL_SO_PATH.*transport"),
    "HCCL": (HcclSender, "vllm-ascend made no group of HCCL: .*HCCL_SO_PATH.*transport"),
}
DISABLED = [True, False]


class Communicator:
    """What both libraries' have in common."""

    def __init__(self, store: Any = None, device: Any = None, disabled: bool = False) -> None:
        self.disabled = disabled


class PyNcclCommunicator(Communicator):
    pass


class PyHcclCommunicator(Communicator):
    pass


MAKERS: dict[str, type[Communicator]] = {"NCCL": PyNcclCommunicator, "HCCL": PyHcclCommunicator}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Says whether the communicators that are made from here on are disabled."""

    def give(disabled: bool) -> None:
        for name, library in ((NCCL, "NCCL"), (HCCL, "HCCL")):
            module: Any = ModuleType(name)
            maker = MAKERS[library]
            setattr(module, maker.__name__, lambda store, device, maker=maker: maker(disabled=disabled))
            monkeypatch.setitem(sys.modules, name, module)

    for module in (nccl, hccl):
        monkeypatch.setattr(module, "open_store", lambda *where: None)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    return give


@pytest.mark.parametrize("disabled", DISABLED)
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_trainer_sends_by_no_disabled_group(
    made: Callable[[bool], None], library: str, disabled: bool
) -> None:
    made(disabled)
    kind, told = LIBRARIES[library]
    sender: CollectiveSender = kind()
    if not disabled:
        sender.init(2, "127.0.0.1:1")
        return
    with pytest.raises(BrokenOff, match=f"RuntimeError: {told}"):
        sender.init(2, "127.0.0.1:1")


@pytest.mark.parametrize("disabled", DISABLED)
def test_an_engine_stages_from_no_disabled_group(
    made: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, disabled: bool
) -> None:
    utils: Any = ModuleType("vllm.distributed.utils")
    utils.StatelessProcessGroup = SimpleNamespace(create=lambda **where: None)
    monkeypatch.setitem(sys.modules, "vllm.distributed.utils", utils)
    made(disabled)
    meeting = Rendezvous("127.0.0.1", 1, 2, 1)
    if not disabled:
        assert isinstance(staging_worker._join(meeting, 0, torch.device("cuda")), PyNcclCommunicator)
        return
    with pytest.raises(RuntimeError, match=LIBRARIES["NCCL"][1]):
        staging_worker._join(meeting, 0, torch.device("cuda"))


@pytest.mark.parametrize("disabled", DISABLED)
@pytest.mark.parametrize("library", LIBRARIES)
def test_an_engine_of_weights_of_vllm_s_own_is_looked_at(library: str, disabled: bool) -> None:
    """It would load memory that nobody wrote."""
    group = MAKERS[library](disabled=disabled)
    worker = SimpleNamespace(weight_transfer_engine=SimpleNamespace(model_update_group=group))
    if not disabled:
        WeightLoader.check_group(worker)
        return
    with pytest.raises(RuntimeError, match=LIBRARIES[library][1]):
        WeightLoader.check_group(worker)
