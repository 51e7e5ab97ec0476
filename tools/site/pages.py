"""What the site has beside docs/: the examples as pages; and links that lead where the site has them.

Guarantees: pure functions of the repository's files. A relative link to what has no page in the site raises
ValueError, so that `mkdocs build` ends with it.
"""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

EXAMPLES = "examples"
_LANGUAGES = {".yaml": "yaml", ".py": "python", ".jsonl": "json", ".md": "markdown"}
# A link's target: of [text](target), an image included; with a scheme it leads out of the repository.
_TARGET = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
_CODE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)


def example_pages(root: Path) -> dict[str, str]:
    """The pages made of examples/, by their place in the site: the table, and one for each example with
    all of its files as they are."""
    folder = root / EXAMPLES
    pages = {f"{EXAMPLES}/index.md": (folder / "README.md").read_text()}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".yaml":
            pages[f"{EXAMPLES}/{path.stem}.md"] = _page(f"{EXAMPLES}/{path.name}", [path])
        elif path.is_dir():
            files = sorted(each for each in path.iterdir() if each.suffix in _LANGUAGES)
            pages[f"{EXAMPLES}/{path.name}.md"] = _page(f"{EXAMPLES}/{path.name}", files)
    return pages


def _page(title: str, files: list[Path]) -> str:
    shown = [f"## {path.name}\n\n````{_LANGUAGES[path.suffix]}\n{path.read_text()}````\n" for path in files]
    return "\n".join([f"# {title}\n", *shown])


def places(root: Path) -> dict[str, str]:
    """Where the site has a file or folder of the repository: paths from the root to pages of the site."""
    found = {"README.md": "index.md", EXAMPLES: f"{EXAMPLES}/index.md", "docs": "index.md"}
    for path in sorted((root / "docs").rglob("*")):
        found[path.relative_to(root).as_posix()] = path.relative_to(root / "docs").as_posix()
    for path in sorted((root / EXAMPLES).rglob("*")):
        inside = path.relative_to(root / EXAMPLES)
        page = "index.md" if inside.name == "README.md" else f"{Path(inside.parts[0]).stem}.md"
        found[path.relative_to(root).as_posix()] = f"{EXAMPLES}/{page}"
    return found


def with_links(text: str, source: str, page: str, known: Mapping[str, str]) -> str:
    """The markdown of a file, `source` in the repository and `page` in the site, with the relative links of
    the one turned into those of the other. Code is left as it is."""

    def place(target: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target[1]))
        if path not in known:
            raise ValueError(f"{source}: the site has no page for {target[1]} ({path})")
        return posixpath.relpath(known[path], posixpath.dirname(page) or ".")

    parts = _CODE.split(text)
    # split() with one group: texts at even places, code between them.
    return "".join(part if number % 2 else _TARGET.sub(place, part) for number, part in enumerate(parts))
