"""`python -m tests.support.runtime.prepared_python ADDRESS PARENT`: imports what a job's processes need,
and forks them when they are asked for (`prepared`).

Nothing here may start a thread, which would not be in a forked process, or import Ray, which reads its
settings and its token when it is imported and never again.
"""

import gc
import importlib
import os
import runpy
import sys
from pathlib import Path

from rljob_runtime.site import one_machine
from tests.support.runtime import forking
from tests.support.runtime.hang_ups import hear_hang_ups

IMPORTED = (
    "google.protobuf.descriptor_pb2",
    "jsonschema",
    "rljob_runtime.cli",
    "rljob_runtime.driver.run",
    "rljob_runtime.engines.rollout_worker",
    "rljob_runtime.engines.torch",
    "rljob_runtime.manifest.model_trial",
    "rljob_runtime.queue.host",
    "rljob_runtime.trainer.rank_actor",
    # The last: it keeps garbage collections from all that is imported by then.
    "tests.support.runtime.rank_imports",
)
WORKER = str(Path(__file__).with_name("prepared_worker.py"))
"""What Ray starts instead of its own script, by the name that it has for that."""


def main() -> None:
    forking.end_with(int(sys.argv[2]))
    gc.disable()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.enable()
    assert "ray" not in sys.modules
    listener = forking.listen(sys.argv[1])
    print("ready", flush=True)
    _do(forking.serve(listener))


def _do(asked: forking.Asked) -> None:
    """What a forked process does, to its end."""
    if asked.kind == "workers":
        _do(forking.serve(forking.listen(asked.arguments[0])))
    elif asked.kind == "module":
        _fork_workers_below()
        # A process group of its own, as of a shell's command: tests signal it.
        os.setpgid(0, 0)
        hear_hang_ups()
        sys.argv = asked.arguments
        runpy.run_module(asked.arguments[0], run_name="__main__", alter_sys=True)
    else:
        _work(asked.arguments)


def _fork_workers_below() -> None:
    """From now on workers of the Ray that this process starts are forked from a server below it: tests look
    for a run's processes among its descendants."""
    address = f"{sys.argv[1]}-{os.getpid()}"  # beside the server that forked this process
    listener = forking.listen(address)
    this = os.getpid()
    if os.fork() == 0:
        forking.end_with(this)
        _do(forking.serve(listener))
        sys.exit()
    listener.close()
    os.environ[forking.ADDRESS] = address
    # As the run itself does before it imports Ray.
    one_machine.prepare()
    from ray._private import ray_constants

    ray_constants.SETUP_WORKER_FILENAME = WORKER


def _work(arguments: list[str]) -> None:
    """What Ray's setup_worker.py does, without a new Python: `arguments` are those of that script."""
    import torch

    # As the raylet has each worker that it starts by itself, whose whole group it ends with it.
    os.setpgid(0, 0)
    # Torch's library read it when it was loaded, before Ray set it for this process.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.utils import update_envs
    from ray._private.workers.setup_worker import parser

    known, (script, *rest) = parser.parse_known_args(arguments)
    update_envs(RuntimeEnvContext.deserialize(known.serialized_runtime_env_context or "{}").env_vars)
    sys.argv = [script, *rest]
    sys.path[:] = forking.search_path(str(Path(script).parent), sys.path)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
