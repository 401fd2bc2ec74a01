"""Markdown files as programs: the code blocks of a file by section, run in order."""

import contextlib
from dataclasses import dataclass
import io
from pathlib import Path
import re

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language (empty if none is named), its text, and the line that it begins on."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Document:
    """A Markdown file of the project."""

    name: str

    @property
    def path(self):
        return ROOT / self.name

    @property
    def text(self):
        return self.path.read_text(encoding="utf-8")

    def section(self, title):
        """The text of one section, without its title."""
        return self.text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]

    def sections(self, language):
        """Titles of the sections that have blocks of a language."""
        titles = re.findall(r"^## (.*)$", self.text, re.MULTILINE)
        return [title for title in titles if any(b.language == language for b in self.blocks(title))]

    def blocks(self, title):
        """The fenced blocks of a section, in order."""
        start = self.text.index(f"\n## {title}\n")
        before = self.text[:start].count("\n") + 2
        section = self.section(title)
        return [Block(m[1], m[2], before + section[: m.start(2)].count("\n")) for m in _BLOCK.finditer(section)]

    def lines(self, language):
        """The lines of all blocks of a language."""
        return [line for _, found, text in self._all() if found == language for line in text.splitlines()]

    def _all(self):
        return [(m.start(), m[1], m[2]) for m in _BLOCK.finditer(self.text)]


@dataclass(frozen=True)
class Documents:
    """The README and the pages of `docs/`, in the order in which they are read, as one document."""

    pages: tuple[Document, ...]

    @property
    def text(self):
        return "\n".join(page.text for page in self.pages)

    def page(self, title):
        """The page that has a section."""
        (page,) = (page for page in self.pages if f"\n## {title}\n" in page.text)
        return page

    def section(self, title):
        return self.page(title).section(title)

    def sections(self, language):
        return [title for page in self.pages for title in page.sections(language)]

    def blocks(self, title):
        return self.page(title).blocks(title)

    def lines(self, language):
        return [line for page in self.pages for line in page.lines(language)]


def run(document, title):
    """Run the Python blocks of a section in one namespace, in the current directory. A block of text states what the
    Python before it printed; a TOML block is a file, named by what it calls itself."""
    document = document.page(title) if isinstance(document, Documents) else document
    namespace, printed = {"__name__": "document"}, ""
    for block in document.blocks(title):
        if block.language == "python":
            printed = _printed(document, block, namespace)
        elif block.language == "text" and printed:
            assert printed == block.text, f"line {block.line} of {document.name}"
            printed = ""
        elif block.language == "toml":
            name = re.search(r'^name = "(\w+)"$', block.text, re.MULTILINE)[1]
            Path(f"{name}.toml").write_text(block.text, encoding="utf-8")


def _printed(document, block, namespace):
    """Run a block under the lines that it has in the document, so that tracebacks and rules name these."""
    code = compile("\n" * block.line + block.text, document.path, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, namespace)
    return out.getvalue()
