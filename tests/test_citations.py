"""Whatever the code and the pages cite is in the bibliography, by one name."""

import ast
import re
import tokenize
from pathlib import Path

import faithmeter

PACKAGE = Path(faithmeter.__file__).parent
DOCS = Path(__file__).parents[1] / "docs"
BIBLIOGRAPHY = (DOCS / "bibliography.md").read_text(encoding="utf-8")
NAMES = (
    r"((?:[A-Z][A-Za-z]+(?:-[A-Z][a-z]+)?(?: and [A-Z][A-Za-z]+| et al\.)|Oxford thesis"
    r"|Beran|Donner|Efron|Enguehard|Fieller|Hsu|Johnson|Kish|Piepho|Shapley|Simes|Vovk|Wilson))"
)
CITATION = re.compile(NAMES + r"(?:,? \(|, )((?:19|20)\d\d)\b")


def prose(path: Path) -> str:
    """The docstrings and comments of a module, each paragraph in one line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
    with tokenize.open(path) as file:
        comments = [t.string for t in tokenize.generate_tokens(file.readline) if t.type == tokenize.COMMENT]
    return re.sub(r"\s+", " ", "\n".join([*docstrings, *comments]))


def cited(text: str) -> set[str]:
    return {f"{names} ({year})" for names, year in CITATION.findall(re.sub(r"\s+", " ", text))}


CODE = {path.relative_to(PACKAGE).as_posix(): prose(path) for path in sorted(PACKAGE.rglob("*.py"))}
PAGES = {page.name: page.read_text(encoding="utf-8") for page in DOCS.glob("*.md") if page.name != "bibliography.md"}
LISTED = re.findall(r"^\| ([^|]+ \(\d{4}\)) \|", BIBLIOGRAPHY, re.MULTILINE)


def test_every_paper_is_in_the_bibliography_once_and_none_that_nobody_cites():
    assert len(LISTED) == len(set(LISTED)) > 20
    found = {name: where for where, text in {**PAGES, **CODE}.items() for name in cited(text)}
    assert not {name: where for name, where in found.items() if name not in LISTED}
    assert not set(LISTED) - set(found)


def test_docstrings_name_authors_and_year_and_no_short_name_that_only_insiders_know():
    bare = re.compile(r"\b(SPEC|FMM|Thesis|REGEX|Infidelity)\b|ROAR(?:'s)? (?:paper|Sec|App|Table|Fig|Eq)")
    assert not {where: match[0] for where, text in CODE.items() if (match := bare.search(text))}


def test_the_thesis_has_its_place_and_year_in_every_module_that_speaks_of_it():
    assert not [w for w, text in CODE.items() if " thesis" in text and "Oxford thesis (2022)" not in cited(text)]


def test_a_citation_is_found_however_it_is_written():
    text = "Efron, 1987, Eq. 2.3; (Li et al.,\n2023); as DeYoung et al. (2020) and Zhou and Shah (2023) say"
    assert cited(text) == {"Efron (1987)", "Li et al. (2023)", "DeYoung et al. (2020)", "Zhou and Shah (2023)"}


def test_the_version_to_cite_is_the_newest_of_the_changelog_and_of_the_package():
    root = DOCS.parent
    newest = re.search(r"^## \[([\d.]+)\] - ([\d-]+)$", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    citation = (root / "CITATION.cff").read_text("utf-8")
    assert newest[1] == faithmeter.__version__
    assert f"\nversion: {newest[1]}\ndate-released: {newest[2]}\n" in citation
