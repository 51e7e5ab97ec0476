"""Arguments of vLLM's own for an engine, and where the engine's drafts are made.

Guarantees: drafts are made on the device where that is asked for, vLLM runs the engine as it would without
any, and has what they need; else on the CPU, and the log says why. Imports vLLM.
"""

import logging
from typing import Any

from rljob_runtime.engines.vllm_device_drafts import obstacle
from rljob_runtime.engines.vllm_shape import VllmShape, arguments

_log = logging.getLogger(__name__)


def configured(shape: VllmShape, transfer: Any, factory: str | None) -> tuple[Any, bool]:
    """The arguments, and whether ranks make drafts on their devices. `transfer` is vLLM's own of how weights
    come, `factory` names what makes the scheduler; None: vLLM itself."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    def made(on_device: bool) -> Any:
        return AsyncEngineArgs(
            **arguments(shape, on_device), weight_transfer_config=transfer, scheduler_cls=factory
        )

    if shape.options.speculation is None or not shape.device_drafts:
        return made(False), False
    # What vLLM runs the engine with is told by its configuration of the same one without drafts.
    chosen = made(True)
    if not (why := obstacle(chosen.create_engine_config(UsageContext.LLM_CLASS), factory)):
        return chosen, True
    _log.info("drafts are made on the CPU, for which vLLM prepares no step while another runs: %s", why)
    return made(False), False
