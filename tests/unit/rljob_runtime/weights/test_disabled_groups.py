"""Groups of HCCL where its library is not there."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from rljob_runtime.weights import hccl
from rljob_runtime.weights.collective import BrokenOff
from rljob_runtime.weights.hccl import HcclSender

HCCL = "vllm_ascend.distributed.device_communicators.pyhccl"


@pytest.mark.parametrize("disabled", [True, False])
def test_without_hccl_no_group_is_made(monkeypatch: pytest.MonkeyPatch, disabled: bool) -> None:
    """vllm-ascend's communicator says so by `disabled`."""
    module: Any = ModuleType(HCCL)
    module.PyHcclCommunicator = lambda store, device: SimpleNamespace(disabled=disabled)
    monkeypatch.setitem(sys.modules, HCCL, module)
    monkeypatch.setattr(hccl, "open_store", lambda *where: None)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    sender = HcclSender()
    if not disabled:
        sender.init(2, "127.0.0.1:1")
        return
    with pytest.raises(BrokenOff, match=r"RuntimeError: vllm-ascend made no group of HCCL: .*HCCL_SO_PATH"):
        sender.init(2, "127.0.0.1:1")
