"""OCI image layouts with one image: reading them, and streaming them as an archive.

Layout: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md. Digests are `sha256:<hex>`.
"""

import io
import json
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

OCI_NAME = "org.opencontainers.image.ref.name"
CONTAINERD_NAME = "io.containerd.image.name"


def digest(layout: Path) -> str:
    """The digest of the image's manifest."""
    return str(_entry(layout)["digest"])


def manifest(layout: Path) -> dict[str, Any]:
    """The image's manifest."""
    return _read(layout, digest(layout))


def config(layout: Path) -> dict[str, Any]:
    """The image's configuration."""
    return _read(layout, manifest(layout)["config"]["digest"])


def blobs(layout: Path) -> list[str]:
    """The digests of what the image is made of: manifest, configuration, layers from the lowest."""
    content = manifest(layout)
    return [digest(layout), content["config"]["digest"], *(layer["digest"] for layer in content["layers"])]


def keep_only(layout: Path, reference: str) -> None:
    """Makes `reference` the layout's only image, and removes the blobs that it does not need."""
    index = json.loads((layout / "index.json").read_text())
    named = [each for each in index["manifests"] if each.get("annotations", {}).get(OCI_NAME) == reference]
    (layout / "index.json").write_text(json.dumps({**index, "manifests": named}))
    needed = {blob_path(layout, each) for each in blobs(layout)}
    for path in (layout / "blobs" / "sha256").iterdir():
        if path not in needed:
            path.unlink()


def write(layout: Path, name: str, stream: IO[bytes], known: Collection[str] = ()) -> None:
    """Writes a tar archive for containerd, in which the image is called `name`.

    Layers in `known` are left out: the reader has them.
    """
    entry = {**_entry(layout), "annotations": {CONTAINERD_NAME: name}}
    index = {"schemaVersion": 2, "manifests": [entry]}
    # A stream: gigabytes go to the reader without a copy on the disk.
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        _add(archive, "oci-layout", (layout / "oci-layout").read_bytes())
        _add(archive, "index.json", json.dumps(index).encode())
        manifest_and_config, layers = blobs(layout)[:2], blobs(layout)[2:]
        # Layers without content are one blob, which an image may have several times.
        for each in dict.fromkeys([*manifest_and_config, *(each for each in layers if each not in known)]):
            path = blob_path(layout, each)
            archive.add(path, str(path.relative_to(layout)))


def blob_path(layout: Path, identity: str) -> Path:
    """The file of a blob."""
    return layout / "blobs" / "sha256" / identity.removeprefix("sha256:")


def _entry(layout: Path) -> dict[str, Any]:
    index = json.loads((layout / "index.json").read_text())
    (only,) = index["manifests"]  # more than one, or none, is an error
    return dict(only)


def _read(layout: Path, identity: str) -> dict[str, Any]:
    return dict(json.loads(blob_path(layout, identity).read_text()))


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
