"""What `mkdocs build` calls (`hooks` in mkdocs.yml): the examples become pages, and links lead to them."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.site.pages import EXAMPLES, example_pages, places, with_links

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for place, text in example_pages(ROOT).items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    source = f"{EXAMPLES}/README.md" if place == f"{EXAMPLES}/index.md" else f"docs/{place}"
    try:
        return with_links(markdown, source, place, places(ROOT))
    except ValueError as error:
        raise PluginError(str(error)) from error
