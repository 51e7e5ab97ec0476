"""Images as archives, and on their way into a containerd of the test's own."""

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tools.cluster import image_archive, images
from tools.cluster.packages import ensure_packages
from tools.cluster.processes import Process

NAME = "localhost/rljob/operator:test"


class Containerd:
    """A containerd that has no pods; `images.load` uses it as it uses a node."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "containerd.sock"
        config = folder / "config.toml"
        config.write_text(
            f'version = 2\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
            f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "{self.socket}"\n'
        )
        command = [shutil.which("containerd") or "", f"--config={config}"]
        self.process = Process("containerd", command, folder / "containerd.log", self._answers)
        self.imports = 0
        """How often an image was loaded, or should have been."""
        self.before_import: Callable[[], object] = lambda: None

    def entering(self, command: Sequence[str]) -> list[str]:
        program, *arguments = command
        if "import" in arguments:
            self.imports += 1
            self.before_import()
        return [program, f"--address={self.socket}", *arguments]

    def ctr(self, *arguments: str) -> str:
        command = self.entering(["ctr", "--namespace=k8s.io", *arguments])
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def _answers(self) -> bool:
        return self.socket.exists() and "Version" in self.ctr("version")


@pytest.fixture
def containerd() -> Iterator[Containerd]:
    ensure_packages({"containerd": "containerd", "ctr": "containerd"})
    with tempfile.TemporaryDirectory(prefix="rljob-") as folder:  # a socket's path has to be short
        started = Containerd(Path(folder))
        started.process.start()
        yield started
        started.process.stop()


def members(layout: Path, known: Sequence[str] = ()) -> dict[str, bytes]:
    """The files of an archive."""
    stream = io.BytesIO()
    image_archive.write(layout, NAME, stream, known)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


@pytest.fixture
def layout(tmp_path) -> Path:
    """A layout with an image of two layers, and what is left of an older one."""
    folder = tmp_path / "layout"
    (folder / "blobs" / "sha256").mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(name: str, content: object) -> dict[str, object]:
        (folder / "blobs" / "sha256" / name).write_text(json.dumps(content))
        return {"digest": f"sha256:{name}", "size": len(json.dumps(content))}

    layers = [blob("low", "files"), blob("high", "more files")]
    new = blob("new", {"config": blob("config", {"config": {}}), "layers": layers})
    old = blob("old", {"config": blob("oldconfig", {}), "layers": [blob("oldlayer", "old files")]})
    named = {**new, "annotations": {image_archive.OCI_NAME: NAME}}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [old, named]}))
    return folder


def test_only_the_named_image_is_kept(layout):
    image_archive.keep_only(layout, NAME)
    assert image_archive.digest(layout) == "sha256:new"
    left = {path.name for path in (layout / "blobs" / "sha256").iterdir()}
    assert left == {"new", "config", "low", "high"}


@pytest.mark.parametrize(
    ("known", "layers"),
    [((), {"low", "high"}), (["sha256:low"], {"high"}), (["sha256:low", "sha256:high"], set())],
)
def test_known_layers_are_left_out(layout, known, layers):
    image_archive.keep_only(layout, NAME)
    written = members(layout, known)
    names = {"oci-layout", "index.json", "blobs/sha256/new", "blobs/sha256/config"}
    assert written.keys() == names | {f"blobs/sha256/{each}" for each in layers}
    [entry] = json.loads(written["index.json"])["manifests"]
    assert entry["annotations"] == {image_archive.CONTAINERD_NAME: NAME}


def test_containerd_takes_an_image_and_then_only_what_it_lacks(operator, containerd):
    built = images.Built(NAME, operator.layout)
    assert images.load(built, containerd)
    assert NAME in containerd.ctr("images", "ls", "-q").split()
    assert not images.load(built, containerd)
    # Under a new name, with all layers there already: the archive holds none.
    other = images.Built(f"{NAME}-2", operator.layout)
    assert images.load(other, containerd)
    assert other.reference in containerd.ctr("images", "ls", "-q").split()
    containerd.ctr("images", "rm", NAME)
    assert operator.manifest["layers"][0]["digest"] in containerd.ctr("content", "ls", "-q")


def test_an_image_whose_layers_go_while_it_is_loaded_is_loaded_again(operator, containerd):
    """The only image that has them is removed when the node was asked what it has already."""
    assert images.load(images.Built(NAME, operator.layout), containerd)

    def lose() -> None:
        if containerd.imports == 2:
            containerd.ctr("images", "rm", "--sync", NAME)
            assert containerd.ctr("content", "ls", "-q") == ""

    containerd.before_import = lose
    other = images.Built(f"{NAME}-2", operator.layout)
    assert images.load(other, containerd)
    assert containerd.imports == 3
    assert containerd.ctr("images", "ls", "-q").split() == [other.reference]
    assert operator.manifest["layers"][0]["digest"] in containerd.ctr("content", "ls", "-q")


@pytest.mark.parametrize(
    ("said", "again"),
    [
        ("ctr: failed to extract layer sha256:a: content digest sha256:a: not found", True),
        ("ctr: failed to prepare: parent snapshot sha256:a does not exist: not found", True),
        ("ctr: failed commit on ref: unexpected commit digest sha256:a, expected sha256:b", False),
        ("ctr: write /var/lib/containerd: no space left on device", False),
        ("exit code -9", False),
    ],
)
def test_what_is_tried_again(monkeypatch, containerd, layout, said, again):
    image_archive.keep_only(layout, NAME)
    tries = []
    monkeypatch.setattr(images, "_import", lambda *_: tries.append(said) or said)
    with pytest.raises(images.ProcessFailed, match=f"the node did not take {NAME}: .*{said[-20:]}"):
        images.load(images.Built(NAME, layout), containerd)
    assert len(tries) == (images.LOAD_TRIES if again else 1)


def test_what_containerd_says_is_told(operator, containerd, tmp_path):
    broken = tmp_path / "broken"
    (broken / "blobs" / "sha256").mkdir(parents=True)
    for name in ("oci-layout", "index.json"):
        (broken / name).write_bytes((operator.layout / name).read_bytes())
    for digest in image_archive.blobs(operator.layout)[:2]:
        path = image_archive.blob_path(broken, digest)
        path.write_bytes(image_archive.blob_path(operator.layout, digest).read_bytes())
    layer = image_archive.blob_path(broken, image_archive.blobs(operator.layout)[2])
    layer.write_text("not the layer")
    for digest in image_archive.blobs(operator.layout)[3:]:
        image_archive.blob_path(broken, digest).write_text("")
    with pytest.raises(images.ProcessFailed, match="the node did not take"):
        images.load(images.Built(NAME, broken), containerd)
