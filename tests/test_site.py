"""What can be known of the site without building it: pages, links, examples, names and their docstrings."""

import inspect
import re
import runpy
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import matplotlib.pyplot as plt
import pytest

from anchorinv.core.registry import METHODS

ROOT = Path(__file__).parents[1]
DOCS, SOURCES = ROOT / "docs", ROOT / "src" / "anchorinv"
PAGES = sorted(DOCS.glob("*.md"))
MARKDOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
QUICKEST = ("01_first_model.py", "04_live_stream.py")
LISTED = re.findall(r"^   ~(anchorinv\.\S+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
# Missing and unknown parameters, another order, no type.
CODES = ("PR01", "PR02", "PR03", "PR04")
# How a type begins; anything else on a parameter's line is a description that stands in its place.
TYPE = re.compile(
    r"(array|ndarray|object|bool|bytes|callable|dict|float|frozenset|generator|int|iterable|iterator|list|mapping|"
    r"mne|array_like|module|nn|numpy|np|path|sequence|set|str|torch|tuple|type|[A-Z][\w.]*)\b|[({~\"']"
)


def text(path):
    return path.read_text(encoding="utf-8")


def without_code(page):
    return re.sub(r"```.*?```|`[^`\n]*`", "", page, flags=re.DOTALL)


def slugs(page):
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def test_every_page_is_in_the_table_of_contents():
    toctree = "".join(re.findall(r"```\{toctree\}\n(.*?)```", text(DOCS / "index.md"), re.DOTALL))
    entries = re.findall(r"<(\S+)>", toctree)
    assert sorted(entries) == sorted(
        ["gallery/index", *(page.stem for page in PAGES if page.stem != "index")]
    )


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text(page))):
        if target.startswith(("http://", "https://", "gallery/")):
            continue
        name, _, anchor = unquote(target).partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in slugs(text(file))):
            lost.append(target)
    assert lost == []


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    named = re.findall(r"`((?:core|docs|benchmarks|examples|tests)/[\w/-]+\.\w+)`", text(page))
    assert [name for name in named if not any((root / name).exists() for root in (ROOT, SOURCES))] == []


def test_only_links_lead_out():
    """Pictures, styles and scripts lie beside the pages: nothing is fetched by whoever reads them."""
    for page in MARKDOWN:
        assert re.findall(r"!\[[^\]]*\]\(https?:|<(?:img|script|link)[^>]*https?:", text(page)) == []
    for file in (*DOCS.glob("_static/*"), DOCS / "conf.py"):
        assert "http" not in text(file)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_page_with_a_figure(example):
    source = text(example)
    compile(source, example.name, "exec")
    title, line, *_ = source.removeprefix('"""\n').splitlines()
    assert len(title) == len(line) and set(line) == {"="}
    assert source.count("plt.show()") == 1 and "savefig" not in source
    assert not re.search(r"^from anchorinv\S* import .*\b_", source, re.MULTILINE), "public names only"


def test_there_are_six_examples():
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("name", QUICKEST)
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    try:
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        assert plt.get_fignums()
    finally:
        plt.close("all")


def resolved(name):
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


@pytest.mark.parametrize("name", LISTED)
def test_a_listed_name_is_there_and_described(name):
    assert inspect.getdoc(resolved(name))


def test_no_name_is_listed_twice_and_all_of_the_package_are():
    assert len(LISTED) == len(set(LISTED))
    package = import_module("anchorinv")
    constants = {name for name in package.__all__ if name.isupper() or name.startswith("_")}
    assert {f"anchorinv.{name}" for name in package.__all__ if name not in constants} <= set(LISTED)


def problems(name):
    """Return what numpydoc finds in a docstring and, of a class, in those of its methods with parameters."""
    pytest.importorskip("numpydoc")
    from numpydoc.docscrape import get_doc_object
    from numpydoc.validate import Validator, validate

    found = resolved(name)
    home = f"{found.__module__}.{found.__qualname__}"
    # What is only to be implemented is not called: it has methods, but no parameters.
    abstract = inspect.isabstract(found) or getattr(found, "_is_protocol", False)
    names = [] if abstract else [home]
    if inspect.isclass(found):
        own = {key: value for key, value in vars(found).items() if inspect.isfunction(value)}
        names += [f"{home}.{key}" for key, value in own.items() if "Parameters\n" in (value.__doc__ or "")]
    wrong = [f"{each}: {said}" for each in names for code, said in validate(each)["errors"] if code in CODES]
    for each in names:
        for parameter in Validator(get_doc_object(Validator._load_obj(each))).doc["Parameters"]:
            if not (parameter.name.startswith("*") or TYPE.match(parameter.type)):
                wrong.append(f"{each}: {parameter.name} has no type but {parameter.type!r}")
    return wrong


@pytest.mark.parametrize("name", LISTED)
def test_parameters_are_written_as_numpydoc_reads_them(name):
    assert problems(name) == []


def test_the_readme_counts_methods_as_the_registry_does():
    words = {9: "nine"}
    published = sum(spec.published for spec in METHODS.values())
    readme = " ".join(text(ROOT / "README.md").split())
    assert f"{len(METHODS)} methods, {words[published]} of them" in readme
    assert len(text(ROOT / "README.md").splitlines()) <= 90


def test_the_citation_is_of_this_version():
    version = import_module("anchorinv").__version__
    assert re.search(rf"^version: {re.escape(version)}$", text(ROOT / "CITATION.cff"), re.MULTILINE)
