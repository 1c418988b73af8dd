"""For `make site`: what pages link to outside docs/ is part of the site, under source/, in the repository's layout.

On the web view of a repository `../../benchmarks/README.md` leads to a page, and `../../deploy/prometheus` to a list of
files. So it does here: pages are pages, folders are lists, other files are copied.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = "docs/"
SOURCE = "source/"
# Pages of the menu that lie outside docs/.
BEGIN_WITH = ("benchmarks/README.md", "deploy/README.md", "CHANGELOG.md", "README.zh-CN.md")
# Of a link or an image its target and anchor; code has none, in fences and in backticks.
LINK = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]*`)|(?P<before>\]\()(?P<to>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)", re.MULTILINE | re.DOTALL
)
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|//", re.IGNORECASE)


def repository_path(uri: str) -> str:
    """Where the repository has what the site has at `uri`."""
    return uri.removeprefix(SOURCE) if uri.startswith(SOURCE) else DOCS + uri


def site_uri(path: str) -> str:
    """Where the site has the repository's `path`; a folder is its list."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    return SOURCE + (f"{path}/index.md" if (ROOT / path).is_dir() else path)


def targets(text: str, page: str) -> list[str]:
    """The repository's paths to which a page at the repository's path `page` links."""
    return [_target(link["to"], page) for link in LINK.finditer(text) if _is_local(link)]


def rewritten(text: str, uri: str) -> str:
    """The text of the site's page `uri` with its links as the site has them."""
    page = repository_path(uri)

    def replace(link: re.Match[str]) -> str:
        if not _is_local(link):
            return link[0]
        to = posixpath.relpath(site_uri(_target(link["to"], page)), posixpath.dirname(uri) or ".")
        return f"{link['before']}{to}{link['anchor'] or ''})"

    return LINK.sub(replace, text)


def outside() -> dict[str, Path | str]:
    """By uri, what the site has beside docs/: the file it is made of, or the text of a list."""
    found: dict[str, Path | str] = {}
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    wanted = [*BEGIN_WITH, *(path for page in pages for path in targets((ROOT / page).read_text(), page))]
    while wanted:
        path = wanted.pop()
        uri = site_uri(path)
        if path.startswith(DOCS) or uri in found or not (ROOT / path).exists():
            continue  # what is not there stays a link that leads nowhere: the strict build names it
        if (ROOT / path).is_dir():
            names = sorted(one.name for one in (ROOT / path).iterdir() if one.is_file())
            found[uri] = f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
            wanted += [f"{path}/{name}" for name in names]
        else:
            found[uri] = ROOT / path
            if path.endswith(".md"):
                wanted += targets((ROOT / path).read_text(), path)
    return found


def _is_local(link: re.Match[str]) -> bool:
    return link["code"] is None and not ELSEWHERE.match(link["to"])


def _target(to: str, page: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), to))


# -- what MkDocs calls ---------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside."""
    from mkdocs.structure.files import File

    for uri, made_of in outside().items():
        given = {"content": made_of} if isinstance(made_of, str) else {"abs_src_path": os.fspath(made_of)}
        files.append(File.generated(config, uri, **given))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them."""
    return rewritten(markdown, page.file.src_uri)
