"""`rljob render`: the objects that the operator applies for a job, as YAML.

Guarantees: what is printed is what is applied, but for the UID of the RLJob, which a manifest does not have.
"""

import argparse
from typing import Any

import yaml

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_operator.render import JobKey, KubeRay, UnsupportedKubeRay, objects, refusals
from rljob_operator.render.images import add_option, with_runtime_image
from rljob_operator.render.labels import queue_of
from rljob_operator.render.refusals import metadata_refusals, pod_refusals

NEWEST_KUBERAY = "1.6.2"
NO_UID = "00000000-0000-0000-0000-000000000000"
"""Stands for the UID that the API server gives an RLJob."""


class RenderCommand:
    """The command, for the `rljob.commands` entry point."""

    help = "print the Kubernetes objects that the operator makes for a job"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Options besides the manifest."""
        parser.add_argument(
            "--attempt", type=_attempt, default=1, metavar="N", help="which attempt (default: 1)"
        )
        parser.add_argument(
            "--kuberay",
            type=_kuberay,
            default=NEWEST_KUBERAY,
            metavar="VERSION",
            help=f"the cluster's KubeRay (default: {NEWEST_KUBERAY})",
        )
        add_option(parser)

    def problems(self, job: RLJob) -> list[Problem]:
        """What is wrong with the job's pods as they are written, whatever the cluster."""
        return pod_refusals(job.spec)

    def run(self, job: RLJob, options: argparse.Namespace) -> list[Problem]:
        """Print the objects; or return what is wrong with the job, and print nothing."""
        spec = with_runtime_image(job.spec, options.runtime_images)
        found = [*metadata_refusals(job.metadata), *refusals(spec)]
        # All or nothing: what is printed can be applied as it is.
        if not found:
            key = JobKey(job.metadata.namespace, job.metadata.name, NO_UID)
            queue = queue_of(job.metadata.labels)
            print(to_yaml(objects(key, spec, options.attempt, options.kuberay, queue)), end="")
        return found


def to_yaml(documents: list[dict[str, Any]]) -> str:
    """The objects as YAML documents."""
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)


class _Plain(yaml.SafeDumper):
    """Without anchors for parts that objects share."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _attempt(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 10**9:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 1000000000 (found {text})")
    return number


def _kuberay(text: str) -> KubeRay:
    try:
        return KubeRay.of_version(text)
    except UnsupportedKubeRay as error:
        raise argparse.ArgumentTypeError(str(error)) from error
