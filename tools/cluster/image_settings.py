"""What an image is built from: its sources, its name, and how this machine installs packages.

Guarantees: decides, and writes nothing but the secrets' files; no address of an index is in a content key.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = ("operator", "runtime-cpu", "runtime-cuda", "runtime-ascend")
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
CERTIFICATES = "/run/secrets/certificates"
"""Where the steps that install find the machine's certificates."""
UV_CACHE = "/run/uv-cache"
"""Where these steps find what uv downloaded on this machine."""
INSTALL_VARIABLES = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_DEFAULT_TIMEOUT",
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_INSECURE_HOST",
    "UV_HTTP_TIMEOUT",
)
"""Settings of pip and uv that a build takes from its environment."""


def version() -> str:
    """The project's version."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def reference(name: str) -> str:
    """The name by which pods of the local cluster know the image of images/`name`."""
    return f"localhost/rljob/{name}:{version()}"


def content_key(name: str, base: str) -> str:
    """A digest of all that an image is made of, but for the packages' contents, which their pins fix."""
    files = [ROOT / "images" / name / "Dockerfile", ROOT / ".dockerignore", *context_files()]
    return _digest(f"{base} {platform.machine()}", files)


def packages_key(name: str) -> str:
    """A digest of what decides which packages an image has."""
    constraints = [path for path in context_files() if path.parent.name == "constraints"]
    return _digest(name, [ROOT / "images" / name / "Dockerfile", *constraints])


def context_files() -> list[Path]:
    """The files that builds get, sorted: those that .dockerignore lets through."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_through = [line.removeprefix("!") for line in lines if line.startswith("!")]
    found = (path for pattern in let_through for top in ROOT.glob(pattern) for path in _files(top))
    return sorted(path for path in found if "__pycache__" not in path.parts)


def uv_cache() -> Path:
    """Where uv keeps what it downloaded: what `make environment` got, builds need not get again."""
    if chosen := os.environ.get("UV_CACHE_DIR"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"


def secrets(folder: Path) -> dict[str, Path]:
    """Files for the builds' secrets, by identity; written into `folder`, which only we can read."""
    bundle = Path(os.environ.get("SSL_CERT_FILE") or BUNDLE)
    files = {}
    settings = install_settings(os.environ, pip_index(), bundle.exists())
    if bundle.exists():
        files["certificates"] = bundle
    files["install-settings"] = folder / "install-settings"
    files["install-settings"].write_text(settings)
    return files


def install_settings(environment: Mapping[str, str], index: str | None, certificates: bool) -> str:
    """Shell assignments for the steps that install.

    `index` is the one of pip's own configuration; pip's index is uv's too where uv has none of its own.
    """
    chosen = {name: environment[name] for name in INSTALL_VARIABLES if environment.get(name)}
    if index:
        chosen.setdefault("PIP_INDEX_URL", index)
    if "PIP_INDEX_URL" in chosen and "UV_INDEX_URL" not in chosen:
        chosen.setdefault("UV_DEFAULT_INDEX", chosen["PIP_INDEX_URL"])
    if certificates:
        chosen |= {"SSL_CERT_FILE": CERTIFICATES, "PIP_CERT": CERTIFICATES}
    chosen["UV_CACHE_DIR"] = UV_CACHE
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(chosen.items()))


def pip_index() -> str | None:
    """The index of the machine's pip.conf, if it names one."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or None if done.returncode == 0 else None


def _digest(first: str, files: Iterable[Path]) -> str:
    digest = hashlib.sha256(f"{first}\0".encode())
    for path in files:
        # With sizes: else a byte moved from one file's end to the next one's beginning would not be told.
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _files(top: Path) -> Iterable[Path]:
    return [top] if top.is_file() else (path for path in top.rglob("*") if path.is_file())
