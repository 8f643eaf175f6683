"""The documentation as a site: the repository's Markdown, read where it lies, its links checked.

`make docs` builds it. A page that no list below names is an error, and so is a link within the
repository that leads nowhere, be it to a file or to a heading.
"""

import re
import subprocess
from pathlib import Path

from pygments.lexers.rust import RustLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
project = "Hamlyn"
version = release = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
project_copyright = "the Hamlyn authors; MIT or Apache-2.0"

# The front page, and the pages beside it by what a reader is after.
root_doc = "README"
CHAPTERS = {
    "Guide": ["docs/guide", "docs/two-users", "docs/two-hosts", "docs/jobs", "docs/own-protocol", "docs/coming-from"],
    "Languages": ["python/README", "capi/README", "docs/event-loops"],
    "Layers": [
        "layers/fm/README",
        "layers/fm/mpi/README",
        "layers/fm/over/README",
        "layers/fm/RESULTS",
        "layers/clan/README",
        "layers/clan/RESULTS",
        "layers/vmmc/README",
        "layers/vmmc/RESULTS",
        "layers/svm/README",
        "layers/rpc/README",
    ],
    "Operating": [
        "docs/operating",
        "docs/directories",
        "docs/settings",
        "docs/kernels",
        "docs/providers",
        "docs/scale",
    ],
    "How it works": [
        "SECURITY",
        "docs/security-local",
        "docs/security-layers",
        "docs/security-protocols",
        "docs/security-hosts",
        "docs/security-fabric",
        "docs/refusals",
        "docs/sealed-files",
        "docs/mended",
        "ARCHITECTURE",
        "docs/glossary",
        "docs/decisions/README",
    ],
    "Figures": ["bench/RESULTS", "bench/README", "bench/peers/README"],
    "Project": ["CONTRIBUTING", "CHANGELOG"],
}
# The pages below a page: those that lie beside it.
BELOW = {"docs/decisions/README": "docs/decisions/*"}
# Every page of the repository, so that one that stands in no list is told.
LISTED = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
include_patterns = subprocess.run(
    LISTED, cwd=ROOT, check=True, capture_output=True, text=True
).stdout.split()
# What need not be walked through.
exclude_patterns = [".*", "target", "bench/peers/build", "examples/http/target"]

extensions = ["myst_parser"]
myst_heading_anchors = 3  # as GitHub names them
html_theme = "furo"
html_title = f"Hamlyn {version}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]


def contents(pages: list[str], caption: str = "") -> str:
    options = f":caption: {caption}\n:maxdepth: 1\n" if caption else ":glob:\n"
    listed = "\n".join(f"/{page}" for page in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n{options}\n{listed}\n```\n"


def with_contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Markdown that is read in a repository has no directives; the site's lists are added here."""
    if page == root_doc:
        source[0] += "".join(contents(pages, caption) for caption, pages in CHAPTERS.items())
    elif page in BELOW:
        source[0] += contents([BELOW[page]])


def without_folders(_app: Sphinx, page: str, source: list[str]) -> None:
    """A folder is no page of the site, and its name stands there alone; what is not there remains."""

    def unlinked(link: re.Match[str]) -> str:
        return link[1] if (ROOT / page).parent.joinpath(link[2]).is_dir() else link[0]

    source[0] = re.sub(r"\[([^][]+)\]\(([^)#:\s]+)\)", unlinked, source[0])


def with_index(app: Sphinx, error: Exception | None) -> None:
    """Whoever opens the folder is led to the front page."""
    if not error and app.builder.name == "html":
        text = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(text)


def setup(app: Sphinx) -> None:
    app.add_lexer("rust,no_run", RustLexer)
    app.connect("source-read", without_folders)
    app.connect("source-read", with_contents)
    app.connect("build-finished", with_index)
