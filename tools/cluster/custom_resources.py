"""Puts custom resource definitions into a cluster, and returns when the API server serves them."""

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.cluster.api import RETRY_SECONDS, Api, ApiError

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVED_SECONDS = 300.0
NOT_YET = {404, 429, 503}
"""The statuses of a resource whose definition is not established, or whose storage is being set up."""


def apply_definitions(api: Api, files: Sequence[Path]) -> None:
    """Server-side apply of files with one definition in each. ApiError, TimeoutError, ProcessFailed."""
    names = [_name(file) for file in files]
    with ThreadPoolExecutor(len(files)) as pool:
        # Unparsed: KubeRay's definitions are 4 MB of YAML, which takes Python seconds.
        list(pool.map(lambda name, file: api.apply(f"{DEFINITIONS}/{name}", file.read_bytes()), names, files))
    wait_until_served(api, files)


def wait_until_served(api: Api, files: Sequence[Path]) -> None:
    """Waits until objects of these definitions, which were applied, can be read, and clients are told of
    them. The same errors."""
    deadline = time.monotonic() + SERVED_SECONDS
    for name in map(_name, files):
        # Polled: a watch of the definitions sends megabytes with every change of one's status.
        while not _is_served(api, name):
            api.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is applied and still not served after {SERVED_SECONDS:.0f} s")
            time.sleep(RETRY_SECONDS)


def _is_served(api: Api, name: str) -> bool:
    resource, _, group = name.partition(".")
    try:
        version = api.request("GET", f"/apis/{group}")["preferredVersion"]["groupVersion"]
        api.request("GET", f"/apis/{version}/{resource}?limit=1")
        # Objects can be read seconds before the definition is established; then it is listed. A client that
        # reads a list with some of a group's resources keeps it, and KubeRay ends two minutes later where one
        # of its own is missing.
        listed = api.request("GET", f"/apis/{version}")["resources"]
    except ApiError as error:
        if error.status in NOT_YET:
            return False
        raise
    return any(each["name"] == resource for each in listed)


def _name(file: Path) -> str:
    """metadata.name, which stands indented by two."""
    metadata = file.read_text().partition("\nmetadata:\n")[2]
    if not (found := re.search(r"^  name: (\S+)$", metadata, re.MULTILINE)):
        raise ValueError(f"{file} has no metadata.name")
    return found[1]
