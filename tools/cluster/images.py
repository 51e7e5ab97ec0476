"""The project's images: built from images/*/Dockerfile by buildah, kept as OCI layouts, loaded into a node.

Guarantees: what did not change is not built again, and of what changed only the layers behind the change; an
image appears in the cache whole or not at all; processes that ask for the same image build it once. Addresses
of package indexes and this machine's certificates are mounted for the steps that install, and thus are in no
layer and in no history.

The base is RLJOB_BASE_IMAGE where that is set (a reference that this machine can pull, or has), and otherwise
a minimal Debian that debootstrap makes: that needs no registry. Needs root.

    built = build("operator")                       # tools.cluster.image_settings.NAMES has the others
    built.reference, built.layout                   # localhost/rljob/operator:0.1.0, an OCI layout
    load(built, NodeShell(folder))                  # only the layers that the node does not have
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tools.cluster import image_archive, image_settings
from tools.cluster.alone import alone
from tools.cluster.binaries import CannotBuild, cache
from tools.cluster.image_settings import NAMES, ROOT
from tools.cluster.node_shell import NodeShell
from tools.cluster.packages import SYSTEM_PATH, ensure_packages
from tools.cluster.processes import ProcessFailed

IMAGE_PACKAGES: Mapping[str, str] = {
    "buildah": "buildah",
    "skopeo": "skopeo",
    "debootstrap": "debootstrap",
    "tar": "tar",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}
"""A program or file, and the Debian package that has it."""
BASE_VARIABLE = "RLJOB_BASE_IMAGE"
DEBIAN = "localhost/debian:bookworm"
BUILT_HERE = ("operator", "runtime-cpu")
"""The images that need no base of a vendor's."""
STEP_SECONDS = 3600.0
"""For one command. On two busy cores the longest, runtime-cpu from nothing, takes 4 minutes."""
LOAD_SECONDS = 1200.0
LOAD_TRIES = 3
"""A second try knows that the layer is gone, and sends it."""
MOST_UNNAMED = 250
"""Intermediate images that are kept; a build after a change of the sources leaves ten."""


@dataclass(frozen=True)
class Built:
    """An image: the name that pods use, and the OCI layout that holds it and nothing else."""

    reference: str
    layout: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The OCI manifest."""
        return image_archive.manifest(self.layout)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The OCI image configuration: `config` (User, Labels, Entrypoint, ...), `history`, `rootfs`."""
        return image_archive.config(self.layout)

    @property
    def uncompressed_bytes(self) -> int:
        """The size of all layers, as pods see it: nothing is compressed here."""
        return sum(layer["size"] for layer in self.manifest["layers"])


def build(name: str, say: Callable[[str], None] = print) -> Built:
    """The image of images/`name`, built now if it is not there as its sources say. CannotBuild."""
    reference = image_settings.reference(name)
    folder = cache() / "images"
    built, stamp = Built(reference, folder / name), folder / f".{name}.made-from"
    with alone(folder):
        wanted = image_settings.content_key(name, os.environ.get(BASE_VARIABLE, DEBIAN))
        if stamp.exists() and stamp.read_text() == wanted and built.layout.exists():
            return built
        _check_machine(say)
        started = time.monotonic()
        base = _base(say)
        say(f"building the image {reference}")
        # What a kill leaves counts as not built.
        stamp.unlink(missing_ok=True)
        _build(name, base, reference)
        _export(reference, built.layout)
        _prune(folder / f".{name}.packages", image_settings.packages_key(name))
        stamp.write_text(wanted)
    say(f"built {reference} in {time.monotonic() - started:.0f} s")
    return built


def load(built: Built, node: NodeShell) -> bool:
    """Makes an image usable by the pods of a node; whether it was not there yet. ProcessFailed.

    What the node has of it already, other images' layers included, is not copied.
    """
    rows = [line.split() for line in node.ctr("images", "ls").splitlines()]
    if any(row[0] == built.reference and image_archive.digest(built.layout) in row for row in rows):
        return False
    said = ""
    for _ in range(LOAD_TRIES):
        said = _import(built, node)
        if not said:
            return True
        if not _lost_a_layer(said):
            break
    raise ProcessFailed(f"the node did not take {built.reference}: {said}")


def _lost_a_layer(said: str) -> bool:
    """Whether an import failed since a layer that the node had was collected as garbage meanwhile: before it
    was unpacked ("content digest sha256:...: not found"), or just when the next one was put onto it ("parent
    snapshot sha256:... does not exist")."""
    return "does not exist" in said or ("content digest sha256:" in said and "not found" in said)


def _import(built: Built, node: NodeShell) -> str:
    """One try to load an image; what went wrong, or nothing."""
    known = frozenset(node.ctr("content", "ls", "-q").split())
    command = node.entering(["ctr", "--namespace=k8s.io", "images", "import", "-"])
    # Into a file: a pipe that nobody reads meanwhile could fill up and stop the import.
    with tempfile.TemporaryFile("w+") as errors:
        importing = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={"PATH": SYSTEM_PATH},
        )
        assert importing.stdin
        limit = threading.Timer(LOAD_SECONDS, importing.kill)
        limit.start()
        try:
            # A broken pipe means that the import has ended; its exit code and its words say why.
            with suppress(BrokenPipeError), importing.stdin as stream:
                image_archive.write(built.layout, built.reference, stream, known)
            code = importing.wait()
        except BaseException:
            importing.kill()
            importing.wait()
            raise
        finally:
            limit.cancel()
        errors.seek(0)
        return errors.read()[-2000:] or f"exit code {code}" if code else ""


def buildah(*arguments: str, seconds: float = STEP_SECONDS) -> str:
    """The output of buildah on the storage of these images. CannotBuild with the end of what it said."""
    return _run(["buildah", *_storage_options(), *arguments], seconds)


@contextmanager
def unpacked(built: Built) -> Iterator[Path]:
    """The image's files, as a container has them at its start; gone afterwards."""
    build(built.layout.name)
    container = buildah("from", "--pull-never", built.reference).strip()
    try:
        yield Path(buildah("mount", container).strip())
    finally:
        buildah("rm", container)


def _check_machine(say: Callable[[str], None]) -> None:
    if os.geteuid() != 0:
        raise CannotBuild("images are built as root: `buildah` mounts file systems")
    needed = {
        program: package
        for program, package in IMAGE_PACKAGES.items()
        if not (program.startswith("/usr/share/") and Path(program).exists())
    }
    if any(not shutil.which(program, path=SYSTEM_PATH) for program in needed):
        ensure_packages(needed, say)


def _base(say: Callable[[str], None]) -> str:
    """The reference of the base image, made now if it is the one that is made here."""
    if chosen := os.environ.get(BASE_VARIABLE):
        return chosen
    if DEBIAN in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return DEBIAN
    say("making a base image with debootstrap")
    with tempfile.TemporaryDirectory(dir=cache() / "images", prefix=".debian-") as temporary:
        root, archive = Path(temporary) / "root", Path(temporary) / "root.tar"
        _run(["debootstrap", "--variant=minbase", "bookworm", str(root)], STEP_SECONDS)
        _add_updates(root / "etc/apt/sources.list")
        for cached in (root / "var/cache/apt/archives").glob("*.deb"):
            cached.unlink()
        shutil.rmtree(root / "var/lib/apt/lists")
        _run(["tar", "-C", str(root), "--sort=name", "-cf", str(archive), "."], STEP_SECONDS)
        container = buildah("from", "scratch").strip()
        buildah("add", "--quiet", container, str(archive), "/")
        buildah("config", "--cmd", "bash", container)
        buildah("commit", "--quiet", "--rm", container, DEBIAN)
    return DEBIAN


def _add_updates(sources: Path) -> None:
    """Let apt find what has been mended since the release, too, where debootstrap found the release."""
    mirror = sources.read_text().split()[1]
    with sources.open("a") as file:
        file.write(f"deb {mirror} bookworm-updates main\n")
        file.write(f"deb {mirror.rstrip('/')}-security bookworm-security main\n")


def _build(name: str, base: str, reference: str) -> None:
    uv_cache = image_settings.uv_cache()
    uv_cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rljob-image-") as folder:
        # Isolation by chroot works in a container too; the steps reach package indexes as this machine does.
        arguments = ["bud", "--layers", "--format=oci", "--isolation=chroot", "--network=host"]
        arguments += [f"--build-arg=BASE_IMAGE={base}", f"--volume={uv_cache}:{image_settings.UV_CACHE}"]
        for identity, file in image_settings.secrets(Path(folder)).items():
            arguments.append(f"--secret=id={identity},src={file}")
        arguments += [f"--file={ROOT / 'images' / name / 'Dockerfile'}", f"--tag={reference}", str(ROOT)]
        buildah(*arguments)


def _export(reference: str, layout: Path) -> None:
    """Copies an image into its layout, which keeps the layers that it has already and drops all others."""
    # skopeo names a storage as [driver@root+runroot] before the image.
    options = dict(zip(("root", "runroot"), map(str, _storage_folders()), strict=True))
    source = f"containers-storage:[overlay@{options['root']}+{options['runroot']}]{reference}"
    target = f"oci:{layout}:{reference}"
    # Uncompressed: layers only go from this machine to itself.
    _run(["skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers", source, target], STEP_SECONDS)
    image_archive.keep_only(layout, reference)


def _prune(note: Path, packages: str) -> None:
    """Removes the layers that no image has any more, in time: when gigabytes of packages were replaced, or
    when small ones have piled up. It costs the next build half a minute, for its tools."""
    replaced = note.exists() and note.read_text() != packages
    unnamed = buildah("images", "--all", "--format", "{{.Name}}").count("<none>")
    if replaced or unnamed > MOST_UNNAMED:
        buildah("rmi", "--prune")
    note.write_text(packages)


def _storage_folders() -> tuple[Path, Path]:
    return cache() / "images" / ".storage", Path("/run") / "rljob-images"


def _storage_options() -> list[str]:
    root, run = _storage_folders()
    return [f"--root={root}", f"--runroot={run}", "--storage-driver=overlay"]


def _run(command: list[str], seconds: float) -> str:
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"`{command[0]}` took more than {seconds:.0f} s") from None
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise CannotBuild(f"`{' '.join(command)}` failed:\n{last}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster.images", description="Builds images.")
    parser.add_argument("name", nargs="*", help=f"of {', '.join(NAMES)}; default: {' '.join(BUILT_HERE)}")
    names = parser.parse_args().name or BUILT_HERE
    if unknown := set(names) - set(NAMES):
        parser.error(f"no image {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    for name in names:
        try:
            built = build(name)
        except CannotBuild as error:
            sys.exit(str(error))
        print(json.dumps({"image": built.reference, "layout": str(built.layout)}))


if __name__ == "__main__":
    main()
