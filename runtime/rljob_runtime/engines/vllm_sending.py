"""What vLLM's engine core sends to its front end arrives as it was sent.

The core's output thread encodes each message into a buffer, and takes that buffer again as soon as ZeroMQ
says that it has sent it. vLLM 0.22.1 asks ZeroMQ about the last of a message's frames, while the buffer is
the first: of a large message with a small last frame it is told "sent" at once, and writes the next message
over what is still on its way. Such messages are what `vllm_scheduler` makes: the tokens of many requests,
with their log-probabilities in frames behind them. vLLM 0.32.0 asks about the first frame.
"""

import zmq

_LARGEST = 2**31 - 1
"""Bytes: pyzmq keeps its limit in a C int."""


def copy_what_is_sent(core: type) -> bool:
    """Have ZeroMQ copy each message of this process before it says that it is sent, where `core`, vLLM's
    `EngineCoreProc`, asks about the last frame alone; whether it does. Sockets that exist stay as they
    are."""
    if hasattr(core, "_send_msg_tracking_payload"):
        return False
    # Below this limit pyzmq copies. A copy of some hundred KB is nothing beside a step.
    zmq.COPY_THRESHOLD = _LARGEST
    return True
