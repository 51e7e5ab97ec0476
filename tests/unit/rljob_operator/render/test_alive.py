"""The liveness probe of the driver's container, run by the shell that runs it there."""

import os
import subprocess
import time

import pytest

from rljob_operator.render.alive import script
from tests.support.operator.rendered import cluster, containers, environment

AGES = {
    # seconds since the file was touched (None: there is none): whether the driver counts as alive
    "before the job begins": (None, True),
    "just now": (0, True),
    "some minutes ago": (1100, True),
    "too long ago": (1300, False),
    # the node's clock was set back
    "in the future": (-5000, True),
}


@pytest.mark.parametrize(("age", "alive"), AGES.values(), ids=AGES)
def test_a_driver_whose_file_is_old_is_not_alive(tmp_path, age, alive):
    file = tmp_path / "alive"
    if age is not None:
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
    done = subprocess.run(["/bin/bash", "-c", script(str(file))], capture_output=True, timeout=20)
    assert (done.returncode == 0, done.stderr) == (alive, b"")


def test_the_probe_is_the_drivers_and_a_template_may_replace_it():
    head = containers(cluster())
    assert [name for name in head if "livenessProbe" in head[name]] == ["driver"]
    probe = head["driver"]["livenessProbe"]
    file = environment(head["driver"])["RLJOB_ALIVE_FILE"]
    assert file in probe["exec"]["command"][-1]
    # Kubernetes' default of one second would count a slow node for a driver that hangs.
    assert probe["timeoutSeconds"] == 30 and probe["periodSeconds"] * probe["failureThreshold"] == 600
    own = {"name": "driver", "livenessProbe": {"exec": {"command": ["true"]}}}
    changed = containers(cluster({"pools.head.template": {"spec": {"containers": [own]}}}))
    assert changed["driver"]["livenessProbe"] == {"exec": {"command": ["true"]}}
