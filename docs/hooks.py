"""For mkdocs: the README is the first page, pictures of measured results are shown from where they are kept, and links of
notebooks lead to pages."""

from pathlib import Path
import re

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent


def on_files(files, config):
    """Add the README, CHANGELOG and CONTRIBUTING, and the pictures of `benchmarks/results/`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=readme.replace("](docs/", "](")))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    for picture in (ROOT / "benchmarks" / "results").glob("*.png"):
        files.append(File.generated(config, f"measured/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links out of `docs/` lead to what was added."""
    return re.sub(r"\]\((?:\.\./)*(benchmarks/results|CONTRIBUTING\.md)", _within(page), markdown)


def _within(page):
    up = "../" * page.file.src_uri.count("/")
    places = {"benchmarks/results": f"{up}measured", "CONTRIBUTING.md": f"{up}CONTRIBUTING.md"}
    return lambda found: f"]({places[found[1]]}"


def on_page_content(html, page, config, files):
    """Links from a notebook to a file lead to its page: mkdocs sees those of Markdown files only."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return re.sub(r'href="((?:\.\./)?)([\w/-]+)\.(?:md|ipynb)((?:#[^"]*)?)"', r'href="../\1\2/\3"', html)
