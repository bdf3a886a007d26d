"""The map holds: read from the syntax tree, so that nothing need be run.

- `core` imports nothing of the package outside `core`, and inside it a file imports only files that stand
  above it in `docs/architecture.md`; there is no cycle anywhere.
- `data` stays clear of torch, `study` builds on `core` and `data`, nothing imports `cli`, and `cli` starts
  without torch.
- Nobody prints but `terminal`, which quotes what it is given; the core writes nothing at all. Nobody
  unpickles, nobody seeds or draws globally.
- What is public has a docstring, no file is a drawer for everything, `anchorinv.__all__` is what there is.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

import anchorinv

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
FILES = sorted(SRC.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}
CORE = sorted(name for name in MODULES if name.startswith("anchorinv.core."))
files = pytest.mark.parametrize("path", FILES, ids=[module_of(path) for path in FILES])


@lru_cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def statements(path: Path, *, at_start: bool) -> Iterator[ast.AST]:
    """All nodes, or only those that run when the module is imported (and not for type checkers alone)."""
    pending: list[ast.AST] = [tree(path)]
    while pending:
        node = pending.pop()
        yield node
        if at_start and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if at_start and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)


def imported(path: Path, *, at_start: bool = False) -> set[str]:
    """The modules that a file imports, in full; for ours also the packages they lie in."""
    found = set()
    for node in statements(path, at_start=at_start):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where(path, node)}: relative import"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & MODULES.keys()) or {node.module}
    return found


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] == "anchorinv"}


def reached(start: str) -> set[str]:
    """All that importing one of our modules imports, parent packages included."""
    seen: set[str] = set()
    pending = [start]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in MODULES:
            pending += imported(MODULES[name], at_start=True)
            pending += [name.rpartition(".")[0]] if "." in name else []
    return seen


def documented_order() -> list[str]:
    """The files of the core in the order of `docs/architecture.md`."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"^  core/.*?(?=^  \w+/)", page, re.MULTILINE | re.DOTALL)
    assert block, "docs/architecture.md lists no core/"
    return [f"anchorinv.core.{name}" for name in re.findall(r"^    (\w+)\.py", block[0], re.MULTILINE)]


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the dotted name it goes by."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


class TestImports:
    def test_the_page_lists_the_files_of_the_core(self) -> None:
        assert sorted(documented_order()) == CORE

    @pytest.mark.parametrize("name", CORE)
    def test_a_file_of_the_core_imports_only_files_above_it(self, name: str) -> None:
        order = documented_order()
        above = set(order[: order.index(name)])
        below = ours(imported(MODULES[name])) - above
        assert not below, f"{name} imports {sorted(below)}, which docs/architecture.md lists below it"

    def test_there_is_no_cycle(self) -> None:
        graph = {name: ours(imported(path)) & MODULES.keys() for name, path in MODULES.items()}
        del graph["anchorinv"]  # it names its contents lazily
        while graph:
            leaves = {name for name, needs in graph.items() if not needs & graph.keys()}
            assert leaves, f"a cycle among {sorted(graph)}"
            graph = {name: needs for name, needs in graph.items() if name not in leaves}

    @pytest.mark.parametrize("name", [*CORE, "anchorinv.core"])
    def test_the_core_never_imports_the_edges(self, name: str) -> None:
        rooms = {target.split(".")[1] for target in ours(imported(MODULES[name])) if "." in target}
        assert rooms <= {"core"}

    @pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("anchorinv.data")])
    def test_data_stays_clear_of_torch(self, name: str) -> None:
        assert "torch" not in {target.split(".")[0] for target in reached(name)}
        rooms = {target.split(".")[1] for target in ours(imported(MODULES[name])) if "." in target}
        assert rooms <= {"data", "signal", "core", "files", "lettering", "problems", "quoting", "_version"}

    @pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("anchorinv.signal")])
    def test_signals_know_nothing_of_data_sets_and_models(self, name: str) -> None:
        assert "torch" not in {target.split(".")[0] for target in reached(name)}
        rooms = {target.split(".")[1] for target in ours(imported(MODULES[name])) if "." in target}
        assert rooms <= {"signal", "core", "files", "problems"}

    @pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("anchorinv.study")])
    def test_study_builds_on_core_and_data(self, name: str) -> None:
        rooms = {target.split(".")[1] for target in ours(imported(MODULES[name])) if "." in target}
        assert rooms <= {
            "core",
            "signal",
            "data",
            "study",
            "files",
            "problems",
            "quoting",
            "tensors",
            "_version",
        }

    @files
    def test_nothing_imports_the_command_line(self, path: Path) -> None:
        if path.name != "__main__.py":  # the command line by another name
            assert not {name for name in imported(path) if name.startswith("anchorinv.cli")}

    def test_the_command_line_starts_without_the_heavy_libraries(self) -> None:
        heavy = {"torch", "numpy", "scipy", "sklearn", "mne", "pandas", "matplotlib"}
        assert not heavy & {name.split(".")[0] for name in reached("anchorinv.cli")}

    @files
    def test_no_import_of_everything(self, path: Path) -> None:
        stars = [
            where(path, node)
            for node in ast.walk(tree(path))
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        ]
        assert not stars


class TestManners:
    @files
    def test_nobody_prints_but_the_terminal(self, path: Path) -> None:
        forbidden = {"print", "pprint", "sys.stdout.write", "sys.stderr.write", "breakpoint", "Console"}
        forbidden |= {"typer.echo", "typer.secho", "rich.print", "Text", "Text.from_markup"}
        assert not [where(path, node) for name, node in calls(path) if name in forbidden]

    @files
    def test_tables_for_people_go_through_one_writer(self, path: Path) -> None:
        writers = {"csv.writer", "csv.DictWriter"}
        found = {module_of(path) for name, _ in calls(path) if name in writers}
        assert found <= {"anchorinv.data.dataset"}, "quoting.csv_line keeps names from being formulas"

    @pytest.mark.parametrize("name", CORE)
    def test_the_core_has_no_files_and_no_terminal(self, name: str) -> None:
        edges = {"os", "io", "sys", "pathlib", "json", "logging", "rich", "typer", "shutil", "tempfile"}
        assert not edges & {target.split(".")[0] for target in imported(MODULES[name])}
        assert not [where(MODULES[name], node) for called, node in calls(MODULES[name]) if called == "open"]

    @files
    def test_nothing_is_unpickled(self, path: Path) -> None:
        picklers = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
        assert not picklers & {name.split(".")[0] for name in imported(path)}
        loads = {"torch.load", "torch.save", "eval", "exec"}
        assert not [where(path, node) for name, node in calls(path) if name in loads]
        for name, node in calls(path):
            pickled = [
                k for k in node.keywords if k.arg == "allow_pickle" and ast.unparse(k.value) != "False"
            ]
            assert not pickled, f"{where(path, node)}: {name} with allow_pickle"

    @files
    def test_nobody_seeds_or_draws_globally(self, path: Path) -> None:
        local = {"default_rng", "Generator", "SeedSequence", "RandomState", "PCG64", "BitGenerator"}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                numpy_global = re.fullmatch(r"(np|numpy)\.random\.(\w+)", name)
                assert not numpy_global or numpy_global[2] in local, where(path, node)
                assert not re.fullmatch(r"torch\.(random\.)?seed", name), where(path, node)
                if node.attr in {"manual_seed", "manual_seed_all", "set_rng_state"}:
                    assert path == MODULES["anchorinv.core.rng"], f"{where(path, node)}: seeds by itself"
        assert "random" not in imported(path)

    @files
    def test_torch_draws_say_from_where(self, path: Path) -> None:
        # Only initialisation and dropout, which run inside scoped_seed, draw from the global generator.
        drawing = re.compile(r"torch\.(rand|randn|randint|randperm|normal|bernoulli|multinomial)(_like)?")
        for name, node in calls(path):
            if drawing.fullmatch(name):
                assert any(keyword.arg == "generator" for keyword in node.keywords), where(path, node)


class TestLegibility:
    @files
    def test_what_is_public_has_a_docstring(self, path: Path) -> None:
        missing = [where(path, node) for node in public(tree(path)) if not ast.get_docstring(node)]
        assert not missing

    @files
    def test_no_file_is_a_drawer_for_everything(self, path: Path) -> None:
        names = {"utils", "util", "helpers", "helper", "common", "base", "misc", "tools"}
        assert not names & set(path.relative_to(SRC).with_suffix("").parts)

    @files
    def test_every_function_says_its_types(self, path: Path) -> None:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.returns is not None, f"{where(path, node)}: {node.name} says no return type"
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                untyped = [a.arg for a in every if a.annotation is None and a.arg not in {"self", "cls"}]
                assert not untyped, f"{where(path, node)}: {node.name} says no type of {untyped}"


def public(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The module, its public functions and classes, and their public methods; nothing inside functions."""
    assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    yield node
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            definition = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if definition and not child.name.startswith("_"):
                yield from public(child)


class TestExports:
    def test_all_names_resolve(self) -> None:
        for name in anchorinv.__all__:
            assert getattr(anchorinv, name) is not None
        assert len(set(anchorinv.__all__)) == len(anchorinv.__all__)
        assert sorted(dir(anchorinv)) == sorted(anchorinv.__all__)

    def test_all_is_what_can_be_had_and_what_type_checkers_see(self) -> None:
        path = MODULES["anchorinv"]
        seen = {
            alias.asname or alias.name
            for node in ast.walk(tree(path))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anchorinv.")
            for alias in node.names
        }
        assert seen == set(anchorinv.__all__)

    def test_each_comes_from_where_type_checkers_think(self) -> None:
        for node in ast.walk(tree(MODULES["anchorinv"])):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anchorinv."):
                home = __import__(node.module, fromlist=["_"])
                for alias in node.names:
                    assert getattr(anchorinv, alias.name) is getattr(home, alias.name)

    def test_other_names_are_refused(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'AnchorInv'"):
            anchorinv.AnchorInv  # noqa: B018

    def test_importing_the_package_does_not_import_torch(self) -> None:
        asked = "import sys, anchorinv; anchorinv.__version__; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
