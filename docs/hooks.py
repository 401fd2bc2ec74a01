"""For mkdocs: the README is the first page, pictures of measured results are shown from where they are kept, indexes of
rules, limitations and errors are made of the library itself, and links of notebooks lead to pages."""

from dataclasses import replace
from pathlib import Path
import re

from mkdocs.structure.files import File

from decomp.rules.certificates import read_committed
from decomp.rules.library import library
from decomp.tools.certification.rule_index import error_index, limitation_index, rule_index

ROOT = Path(__file__).parent.parent


def on_files(files, config):
    """Add the README, CHANGELOG and CONTRIBUTING, and the pictures of `benchmarks/results/`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=readme.replace("](docs/", "](")))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    for name, text in _indexes():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for picture in (ROOT / "benchmarks" / "results").glob("*.png"):
        files.append(File.generated(config, f"measured/{picture.name}", abs_src_path=str(picture)))
    return files


def _indexes():
    """Name and text of each index."""
    rules, certificates = list(library()), read_committed()
    found = rule_index(rules, certificates, ("core_aten", "tinygrad"))
    measured = sorted({each.torch for each in certificates.values() if each.torch})
    about = f"""---
hide: [navigation]
---
# Rules

The {len(rules):,} rules of the library, by module of `decomp_rules`. The error is the largest in float32, in ULP, of a
rule as it is written, beside that of PyTorch's own kernel on the same inputs. The calls are those that the first sample
call becomes at the level of the rule; `native`: the target has the op; empty: it is not reached, or was not measured.
Measured on torch {", ".join(measured)}. `decomp certify OP --stored` shows the whole certificate of a rule, and
`decomp rules OP --to TARGET` compares the rules of an op.
"""
    sections = [f"\n## {module}\n\n{_markdown(table)}\n" for module, table in found.items()]
    yield "rules", about + "".join(sections)
    said = "# Limitations\n\nWhat no rule can decompose, on which targets, and why.\n\n"
    yield "limitations", f"{said}{_markdown(limitation_index(library().limitations))}\n"
    said = "# Errors\n\nEvery error of the project is a `DecompError`. Its message says what to do.\n\n"
    yield "errors", f"{said}{_markdown(error_index())}\n"


def _markdown(table):
    """A table as Markdown, in which every cell is text, and code where it has backticks."""
    escaped = [[_escaped(str(cell)) for cell in row] for row in table.rows]
    return "\n".join(replace(table, rows=escaped).markdown())


def _escaped(cell):
    parts = cell.split("`")
    if len(parts) % 2:
        parts[::2] = [re.sub(r"([<*_\[\]|])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts) if len(parts) % 2 else re.sub(r"([<*_`\[\]|])", r"\\\1", cell)


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
