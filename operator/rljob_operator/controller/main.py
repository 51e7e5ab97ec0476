"""`rljob-operator`: the command that the operator's container runs."""

import argparse
import asyncio
import gc
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from rljob_client.backoff import Backoff, Failures
from rljob_client.credentials import CredentialsError
from rljob_client.passwords import without_passwords
from rljob_operator.controller import arguments as kinds
from rljob_operator.controller.process import OperatorProcess, Options
from rljob_operator.controller.stopping import StopSignals, unless
from rljob_operator.kube.http import CannotListen
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.render.images import add_option

log = logging.getLogger(__name__)

_ANEW = Backoff(base_seconds=1.0, cap_seconds=30.0)
"""Between instances that each began anew soon after their start."""
_SOON_SECONDS = 60.0
_COLLECTOR = (10_000, 20, 20)
"""Thresholds of Python's garbage collector. What is read of a cluster stays, and nearly all else goes without
the collector: with Python's own thresholds more than a tenth of the operator's CPU time goes into looking in
vain."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator; the exit code."""
    options = _parser().parse_args(arguments)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_WithoutPasswords("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])
    gc.set_threshold(*_COLLECTOR)
    try:
        return asyncio.run(_run(options))
    except (CredentialsError, CannotListen) as error:
        print(f"rljob-operator: {error}", file=sys.stderr)
        return 2


class _WithoutPasswords(logging.Formatter):
    """Of whatever is logged, also by kopf and aiohttp: they know nothing of passwords in URLs."""

    def format(self, record: logging.LogRecord) -> str:
        return without_passwords(super().format(record))


async def _run(options: argparse.Namespace) -> int:
    chosen = Options(
        kubeconfig=options.kubeconfig,
        namespace=options.namespace,
        lease_namespace=options.lease_namespace,
        lease_name=options.lease_name,
        cluster_lease_namespace=options.cluster_lease_namespace,
        lease_role=options.lease_role,
        shared_lease_role=options.shared_lease_role,
        port=options.port,
        host=options.host,
        workers=options.workers,
        writes_per_second=options.writes_per_second,
        burst=options.burst,
        runtime_images=options.runtime_images,
    )
    with StopSignals() as signals:
        return await _instances(chosen, signals)


async def _instances(options: Options, signals: StopSignals) -> int:
    """One after the other, until one ends for good or a signal comes; the exit code. Raises what keeps the
    first one from its start."""
    loop, early, again = asyncio.get_running_loop(), Failures(_ANEW, Random()), False
    # Of the process: what the last moments of an instance counted would not be scraped any more.
    metrics = OperatorMetrics()
    while True:
        began, started = loop.time(), True
        try:
            code = await OperatorProcess(options, signals, metrics).run()
        except (CredentialsError, CannotListen) as error:
            if not again:
                raise
            # It worked before, and what keeps the API server away may keep a login's server away, too.
            log.warning("%s; it is tried again", error)
            code, started = None, False
        if code is not None:
            return code
        again = True
        # An instance that worked for a while lost its lease by an outage: the next one begins at once.
        if started and loop.time() - began >= _SOON_SECONDS:
            early.worked()
        else:
            await unless(signals.came, asyncio.sleep(early.failed()))
        if signals.came.is_set():
            return 0


def _parser() -> argparse.ArgumentParser:
    defaults = Options()
    parser = argparse.ArgumentParser(prog="rljob-operator", description="Runs RLJobs on KubeRay.")
    parser.add_argument("--kubeconfig", type=Path, help="default: KUBECONFIG, the pod's service account")
    parser.add_argument("--namespace", type=kinds.namespace, help="watch this namespace alone (default: all)")
    parser.add_argument(
        "--lease-namespace", type=kinds.namespace, help="where the Lease is (default: the process's own)"
    )
    parser.add_argument(
        "--lease-name",
        type=kinds.name,
        default=os.environ.get("RLJOB_LEASE_NAME", defaults.lease_name),
        help="the same in all replicas, and another one in every other operator of that namespace (default: "
        f"RLJOB_LEASE_NAME; else {defaults.lease_name})",
    )
    parser.add_argument(
        "--cluster-lease-namespace",
        type=kinds.namespace,
        default=defaults.cluster_lease_namespace,
        help="where the Lease is that all operators share which watch all namespaces (default: "
        f"{defaults.cluster_lease_namespace})",
    )
    parser.add_argument(
        "--lease-role",
        default=os.environ.get("RLJOB_LEASE_ROLE"),
        help="Role beside the Lease, with which it goes (default: RLJOB_LEASE_ROLE; else it stays)",
    )
    parser.add_argument(
        "--shared-lease-role",
        default=os.environ.get("RLJOB_SHARED_LEASE_ROLE"),
        help="the same for the Lease that several releases share (default: RLJOB_SHARED_LEASE_ROLE)",
    )
    parser.add_argument(
        "--port", type=kinds.port, default=defaults.port, help="of /healthz, /readyz, /metrics"
    )
    parser.add_argument("--host", help="address to listen on (default: all)")
    parser.add_argument(
        "--workers", type=kinds.count, default=defaults.workers, help="jobs reconciled at a time"
    )
    parser.add_argument("--writes-per-second", type=kinds.rate, default=defaults.writes_per_second)
    parser.add_argument("--burst", type=kinds.count, default=defaults.burst, help="writes at once")
    add_option(parser)
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    return parser


if __name__ == "__main__":
    sys.exit(main())
