"""The image of the container that holds a pod's namespaces: one static program, built from modules/pause."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable
from pathlib import Path

from tools.cluster.binaries import kept, program
from tools.cluster.families import PAUSE

IMAGE = "localhost/rljob-pause:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def pause_archive(say: Callable[[str], None] = print) -> Path:
    """A docker-archive with the image, made now if it is not there. CannotBuild."""
    binary = program(PAUSE, "pause", say)
    return kept(PAUSE, "pause.tar", IMAGE, lambda target: _pack(binary, target))


def _pack(binary: Path, target: Path) -> None:
    layer = _tar({"pause": (binary.read_bytes(), 0o755)})
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    files = {"manifest.json": json.dumps(manifest), "config.json": json.dumps(config)}
    parts = {name: (text.encode(), 0o644) for name, text in files.items()}
    target.write_bytes(_tar({**parts, "layer.tar": (layer, 0o644)}))


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
