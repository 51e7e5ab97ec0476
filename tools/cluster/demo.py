"""`make cluster-run`: from a fresh machine to a job that has learned in a cluster, and its report.

Everything that is there already is used as it is: programs, images, a cluster with a node that runs. The
cluster runs on afterwards, for `kubectl`; `make cluster-down` ends it.
"""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from tools.cluster import product
from tools.cluster.api import Api, Object
from tools.cluster.holder import holder
from tools.cluster.processes import ProcessFailed

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "copy.yaml"
CLAIM = "runs"
TRAINING_SECONDS = 1800.0


def show(folder: Path) -> None:
    """In the cluster of `folder`, which has a node: installs the product, trains the example, copies its
    run folder to runs/. ProcessFailed, TimeoutError."""
    product.install(folder)
    job = yaml.safe_load(EXAMPLE.read_text())
    name = job["metadata"]["name"]
    volume = folder / "volumes" / CLAIM
    _make_claim(folder, volume)
    product.kubectl(folder, "delete", "rlj", name, "--ignore-not-found", "--timeout=120s")
    shutil.rmtree(volume / "runs", ignore_errors=True)
    # Without a volume the report would go with the pods.
    job["spec"]["storage"] = {"volume": {"persistentVolumeClaim": {"claimName": CLAIM}}}
    print(f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}    # with storage: the claim {CLAIM}", flush=True)
    product.kubectl(folder, "apply", "-f", "-", stdin=yaml.safe_dump(job))
    status = _follow(folder, name)
    target = ROOT / "runs" / f"{name}-cluster"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(volume / "runs" / "default" / name, target)
    print(_last_words(status))
    print(f"report: {target.relative_to(ROOT)}/report.html")
    print("the cluster runs on; `make cluster-down` ends it:")
    print(f"export KUBECONFIG={shlex.quote(str(folder / 'kubeconfig'))}")
    print(f"export PATH={shlex.quote(str(folder / 'bin'))}:$PATH    # for kubectl and helm")


def _make_claim(folder: Path, volume: Path) -> None:
    volume.mkdir(parents=True, exist_ok=True)
    volume.chmod(0o777)  # the pods' user is none of this machine's
    product.kubectl(folder, "apply", "-f", "-", stdin=yaml.safe_dump_all(claim("default", CLAIM, volume)))


def claim(namespace: str, name: str, folder: Path) -> list[dict[str, Any]]:
    """A volume that is a folder of this machine, and a claim to it."""
    size, modes = {"storage": "10Gi"}, ["ReadWriteMany"]
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{name}"},
        "spec": {
            "capacity": size,
            "accessModes": modes,
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": namespace, "name": name},
            "storageClassName": "",
        },
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": modes,
            "resources": {"requests": size},
            # Empty, not left out: that would mean the default class, which provisions a volume of its own.
            "storageClassName": "",
            "volumeName": f"{namespace}-{name}",
        },
    }
    return [volume, wanted]


def _follow(folder: Path, name: str) -> dict[str, Any]:
    """Shows the job's progress until it has ended; its status then. ProcessFailed if it did not complete."""
    shown = ""

    def ended(jobs: list[Object]) -> bool:
        nonlocal shown
        status = _status(jobs, name)
        if (line := _line(status)) != shown:
            print(line, flush=True)
            shown = line
        return status.get("phase") in ("Complete", "Failed")

    jobs = "/apis/rljob.dev/v1alpha1/namespaces/default/rljobs"
    api = Api.of_kubeconfig(folder / "kubeconfig", lambda: _check_runs(folder))
    status = _status(api.wait(jobs, ended, f"{name} Complete", seconds=TRAINING_SECONDS), name)
    if status["phase"] == "Failed":
        raise ProcessFailed(_last_words(status))
    return status


def _check_runs(folder: Path) -> None:
    if holder(folder) is None:
        raise ProcessFailed("the cluster was ended meanwhile")


def _status(jobs: list[Object], name: str) -> dict[str, Any]:
    return next((each.get("status", {}) for each in jobs if each["metadata"]["name"] == name), {})


def _line(status: dict[str, Any]) -> str:
    pools = " ".join(f"{each['name']} {each['summary']}" for each in status.get("pools", []))
    training = status.get("training")
    if not training or not training.get("progress"):
        return f"  {status.get('phase', 'Pending'):<10} {pools}"
    reward = training.get("reward")
    known = f"reward {reward:.3f}" if reward is not None else ""
    return f"  {status['phase']:<10} {pools}   step {training['progress']}   {known}"


def _last_words(status: dict[str, Any]) -> str:
    ends = [each for each in status.get("conditions", []) if each["type"] in ("Complete", "Failed")]
    return f"  {ends[-1]['type']}: {ends[-1]['message']}" if ends else ""


if __name__ == "__main__":
    show(Path(sys.argv[1]))
