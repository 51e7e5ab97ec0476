"""`python -m tests.support.runtime.prepared_python ADDRESS`: imports what a job's processes need, and forks
them when they are asked for (`prepared`).

Nothing here may start a thread, which would not be in a forked process.
"""

import gc
import os
import runpy
import sys
import tempfile

from rljob_runtime.site import one_machine
from tests.support.runtime import forking

WORKER = os.path.join(os.path.dirname(__file__), "prepared_worker.py")


def main() -> None:
    forking.end_with_parent()
    _import()
    listener = forking.listen(sys.argv[1])
    print("ready", flush=True)
    _do(forking.serve(listener))


def _import() -> None:
    """All but Ray, which reads environment and keys when it is imported and cannot forget them."""
    gc.disable()
    import google.protobuf.descriptor_pb2
    import jsonschema
    import rljob_runtime.cli
    import rljob_runtime.driver.run
    import rljob_runtime.engines.rollout_worker
    import rljob_runtime.engines.torch
    import rljob_runtime.manifest.model_trial
    import rljob_runtime.queue.host
    import rljob_runtime.trainer.rank_actor
    import tests.support.runtime.rank_imports  # noqa: F401

    assert "ray" not in sys.modules
    gc.enable()


def _do(asked: forking.Asked) -> None:
    """What a forked process does, to its end."""
    if asked.kind == "workers":
        # They end with it, and it with its connection: for Ray that another process starts.
        _do(forking.serve(forking.listen(asked.arguments[0])))
    elif asked.kind == "module":
        _fork_workers_below()
        sys.argv = asked.arguments
        runpy.run_module(asked.arguments[0], run_name="__main__", alter_sys=True)
    else:
        _work(asked.arguments)


def _fork_workers_below() -> None:
    """From now on workers of the Ray that this process starts are forked from a server below it."""
    address = os.path.join(tempfile.mkdtemp(prefix="rljob-forking-"), "workers")
    listener = forking.listen(address)
    if os.fork() == 0:
        forking.end_with_parent()
        _do(forking.serve(listener))
        sys.exit()
    listener.close()
    os.environ[forking.ADDRESS] = address
    # Here, not before: its server must not have imported Ray, nor this process before Ray's settings are set.
    one_machine.prepare()
    from ray._private import ray_constants

    ray_constants.SETUP_WORKER_FILENAME = WORKER


def _work(arguments: list[str]) -> None:
    """What Ray's setup_worker.py does, without a new Python: `arguments` are its own."""
    import torch

    # Torch's library read it when it was loaded, before Ray set it for this process.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.utils import update_envs
    from ray._private.workers.setup_worker import parser

    known, (script, *rest) = parser.parse_known_args(arguments)
    update_envs(RuntimeEnvContext.deserialize(known.serialized_runtime_env_context or "{}").env_vars)
    sys.argv = [script, *rest]
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
