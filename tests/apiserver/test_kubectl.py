"""kubectl: `kubectl rljob` as a user of a managed cluster has it, with a kubeconfig whose user logs in by a
command; and what `kubectl apply` keeps of the definition."""

import asyncio
import json

import pytest
import yaml

from rljob_client.resources import RLJOBS
from rljob_operator.kubectl.main import main
from tests.support.jobs import job
from tests.support.last_applied import ANNOTATION, last_applied
from tools.cluster.cluster import RLJOB_DEFINITION

VERSION = "client.authentication.k8s.io/v1"


@pytest.fixture
def kubeconfig(cluster, tmp_path):
    """The cluster's own, with its token behind a command."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    (user,) = config["users"]
    answer = {"apiVersion": VERSION, "kind": "ExecCredential", "status": {"token": user["user"]["token"]}}
    (tmp_path / "login").write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    (tmp_path / "login").chmod(0o700)
    user["user"] = {"exec": {"apiVersion": VERSION, "command": "./login"}}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    return tmp_path / "config"


async def test_status_through_a_command_that_logs_in(here, namespace, kubeconfig, capsys):
    def status(name):
        return main(["status", name, "-n", namespace, "--kubeconfig", str(kubeconfig)])

    made = await here.client.create(job({"/metadata": {"name": "math", "namespace": namespace}}))
    assert await asyncio.to_thread(status, "math") == 0
    assert f"{namespace}/math   Pending" in capsys.readouterr().out
    assert await asyncio.to_thread(status, "physics") == 1
    assert capsys.readouterr().err == f"kubectl rljob: there is no RLJob physics in namespace {namespace}\n"
    await here.client.delete(RLJOBS, namespace, "math", made["metadata"]["uid"])


def test_what_kubectl_apply_keeps_of_the_definition(cluster):
    """The size of that is what bounds the definition."""
    options = ["--save-config", "--dry-run=client", "--output=json"]
    made = json.loads(cluster.kubectl("create", "-f", str(RLJOB_DEFINITION), *options))
    kept = last_applied(yaml.safe_load(RLJOB_DEFINITION.read_text()))
    really = made["metadata"]["annotations"][ANNOTATION]
    assert json.loads(really) == json.loads(kept)
    # Numbers are not written alike.
    assert len(kept) == pytest.approx(len(really), abs=500)
