"""The operator's image and the runtime's for CPUs, built and run as a restricted pod would run them."""

import json
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.images import container
from tools.cluster import images
from tools.cluster.image_settings import ROOT, version

MEGABYTE = 1_000_000
SECRET = re.compile(r"INDEX_URL|INDEX=|https?://(?!\w*\.debian\.org)\S*simple|/run/uv-cache=")


def pins(name: str) -> dict[str, str]:
    """The versions that a constraints file fixes for this machine's kind."""
    lines = (ROOT / "constraints" / f"{name}.txt").read_text().splitlines()
    wanted = [Requirement(line) for line in lines]
    return {
        normal(each.name): str(each.specifier).removeprefix("==")
        for each in wanted
        if each.marker is None or each.marker.evaluate()
    }


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(root: Path) -> dict[str, str]:
    """The versions of the packages in an image's environment."""
    found = {}
    for each in root.glob("opt/rljob/lib/python3*/site-packages/*.dist-info/METADATA"):
        text = each.read_text(errors="replace")
        name, release = (re.search(rf"^{key}: (.*)$", text, re.MULTILINE) for key in ("Name", "Version"))
        assert name and release, each
        found[normal(name[1])] = release[1].strip()
    return found


class TestOperator:
    def run(self, built, root, *command):
        return container.run(root, built.config, command, writable=())

    @pytest.mark.parametrize("program", ["rljob-operator", "kubectl-rljob"])
    def test_programs_run_with_nothing_writable(self, operator, operator_files, program):
        done = self.run(operator, operator_files, program, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: ")

    def test_without_a_cluster_it_says_so(self, operator, operator_files):
        done = self.run(operator, operator_files, "rljob-operator")
        assert done.returncode == 2
        assert "no API server" in done.stderr and "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        "package", ["torch", "ray", "vllm", "rljob_runtime", "pip", "kubernetes.client.api"]
    )
    def test_packages_that_are_not_there(self, operator, operator_files, package):
        done = self.run(operator, operator_files, "python", "-c", f"import {package}")
        assert f"No module named '{package}'" in done.stderr

    def test_it_is_small(self, operator):
        base, *ours = operator.manifest["layers"]
        assert sum(layer["size"] for layer in ours) < 200 * MEGABYTE
        assert base["size"] < operator.uncompressed_bytes

    def test_its_entry_point(self, operator, operator_files):
        config = operator.config["config"]
        assert config["Entrypoint"] == ["rljob-operator"]
        assert (operator_files / "opt/rljob/bin/rljob-operator").exists()

    def test_packages_are_those_pinned(self, operator_files):
        assert installed(operator_files) == pins("operator") | {"rljob": version()}


class TestRuntime:
    def run(self, built, root, *command, **more):
        return container.run(root, built.config, command, seconds=300, **more)

    def test_a_manifest_is_checked(self, runtime_cpu, runtime_files):
        shown = {"/examples": ROOT / "examples"}
        done = self.run(runtime_cpu, runtime_files, "rljob", "validate", "/examples/copy.yaml", shown=shown)
        assert (done.returncode, done.stdout) == (0, "/examples/copy.yaml: valid\n")

    def test_the_wheel_has_all_that_the_commands_need(self, runtime_cpu, runtime_files):
        shown = {"/examples": ROOT / "examples"}
        definition = self.run(runtime_cpu, runtime_files, "rljob", "crd")
        assert definition.stdout == (ROOT / "crds" / "rljobs.rljob.dev.yaml").read_text()
        rendered = self.run(
            runtime_cpu,
            runtime_files,
            "rljob",
            "render",
            "--runtime-image=cpu=x",
            "/examples/copy.yaml",
            shown=shown,
        )
        assert rendered.returncode == 0 and "kind: RayCluster" in rendered.stdout, rendered.stderr

    @pytest.mark.parametrize("shell", ["-c", "-lc"])
    def test_a_shell_finds_ray(self, runtime_cpu, runtime_files, shell):
        done = self.run(runtime_cpu, runtime_files, "bash", shell, "ray --version && command -v wget grep")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"ray, version {pins('runtime-cpu')['ray']}\n")

    def test_rays_command_line_does_without_serve(self, runtime_cpu, runtime_files):
        """It has half of the imports then, at each start of a pod."""
        told = "PYTHONPROFILEIMPORTTIME=1 ray start --help 2>&1"
        said = self.run(runtime_cpu, runtime_files, "bash", "-c", told).stdout
        assert "--block" in said and "ray.scripts.scripts" in said
        assert "ray.serve.api" not in said and "fastapi" not in said

    def test_torch_and_vllm_load(self, runtime_cpu, runtime_files):
        # vLLM has kernels for each kind of CPU: those of another kind end the process.
        code = (
            "import torch; from vllm.platforms import current_platform; current_platform.import_kernels(); "
            "out = torch.empty(1, 16); torch.ops._C.silu_and_mul(out, torch.ones(1, 32)); "
            "print((torch.ones(2, 2) @ torch.ones(2, 2)).sum().item(), round(out.sum().item(), 3))"
        )
        done = self.run(runtime_cpu, runtime_files, "python", "-c", code)
        assert (done.returncode, done.stdout) == (0, "8.0 11.697\n"), done.stderr

    def test_ray_counts_on_a_name_for_its_user(self, runtime_cpu, runtime_files):
        done = self.run(
            runtime_cpu, runtime_files, "python", "-c", "import getpass; print(getpass.getuser())"
        )
        assert done.stdout == "rljob\n"

    def test_packages_are_those_pinned(self, runtime_files):
        assert installed(runtime_files) == pins("runtime-cpu") | {"rljob": version()}

    def test_python_files_are_compiled(self, runtime_files):
        """User 1000 cannot write beside them: each start would compile torch and Ray anew."""
        [torch] = runtime_files.glob("opt/rljob/lib/python3*/site-packages/torch")
        assert list((torch / "__pycache__").glob("__init__.*.pyc"))


@pytest.mark.parametrize("fixture", ["operator", "runtime_cpu"])
class TestBoth:
    @pytest.fixture
    def built(self, request, fixture):
        return request.getfixturevalue(fixture)

    @pytest.fixture
    def files(self, request, fixture):
        return request.getfixturevalue(f"{fixture.removesuffix('_cpu')}_files")

    def test_user_1000_with_a_root_that_is_read_only(self, built, files):
        done = container.run(files, built.config, ["sh", "-c", "id -u; touch /opt/rljob/x /etc/x /x"])
        assert done.stdout == "1000\n" and done.stderr.count("Read-only file system") == 3
        assert built.config["config"]["User"] == "1000:1000"

    def test_labels(self, built):
        labels = built.config["config"]["Labels"]
        prefix = "org.opencontainers.image."
        assert labels[f"{prefix}version"] == version()
        assert labels[f"{prefix}licenses"] == "Apache-2.0"
        assert labels[f"{prefix}title"].startswith("rljob ") and labels[f"{prefix}description"]

    def test_nothing_of_the_machine_that_built_it(self, built, files):
        written = json.dumps([built.config.get("history"), built.config["config"]])
        assert not SECRET.search(written)
        for path in ("etc/pip.conf", "root/.config", "root/.cache", "etc/uv", "run/secrets/install-settings"):
            assert not (files / path).exists(), path
        for folder in ("run/secrets", "run/uv-cache", "var/cache/uv"):
            assert not (files / folder).exists() or not any((files / folder).iterdir()), folder

    def test_nothing_of_it_can_be_written(self, files):
        """Not by user 1000, even where the root file system is writable."""
        folders = [path for path in (files / "opt/rljob").glob("**/") if path.stat().st_mode & 0o022]
        assert folders == []

    def test_a_second_build_is_none(self, built):
        said: list[str] = []
        assert images.build(built.layout.name, said.append) == built
        assert said == []
