"""The map holds: what may import what is in pyproject.toml, and ruff and mypy check what they can.

- Importing the package or the command line does not import the heavy libraries.
- Nobody unpickles, prints past the terminal, or draws from a global generator.
- `docs/architecture.md` lists every file, and `anchorinv.__all__` is what there is.
"""

import ast
import re
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import anchorinv

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "anchorinv"
FILES = sorted(SRC.rglob("*.py"))
HEAVY = ("torch", "numpy", "scipy", "sklearn", "mne", "pandas", "matplotlib", "ray")


@cache  # without a limit: there are more files than lru_cache keeps
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """Every call: where it is, the dotted name it goes by, and itself."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(node.func), node)
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
    ]


def n_lines_of_code(path: Path) -> int:
    """Lines that are neither blank, nor a comment, nor of a docstring."""
    documented: set[int] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node) is not None and first is not None:
                documented.update(range(first.lineno, (first.end_lineno or 0) + 1))
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return sum(i not in documented and line.strip()[:1] not in ("", "#") for i, line in lines)


class TestImports:
    def test_the_rooms_import_in_one_direction(self) -> None:
        linter = Path(sys.executable).parent / "lint-imports"
        done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.parametrize("module", ["anchorinv", "anchorinv.cli"])
    def test_starting_is_light(self, module: str) -> None:
        code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "", f"importing {module} imports {done.stdout}"

    @pytest.mark.parametrize("room", ["signal", "datasets"])
    def test_rooms_that_need_no_torch_import_none(self, room: str) -> None:
        modules = [f"anchorinv.{room}.{path.stem}" for path in (SRC / room).glob("[a-z]*.py")]
        code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestManners:
    def test_nobody_prints_but_the_terminal(self) -> None:
        forbidden = {"sys.stdout.write", "sys.stderr.write", "breakpoint", "Console", "pprint"}
        forbidden |= {"typer.echo", "typer.secho", "rich.print", "Text", "Text.from_markup"}
        assert not [where for where, name, _ in calls() if name in forbidden]

    def test_nothing_is_unpickled(self) -> None:
        loads = {"torch.load", "torch.save", "eval", "exec"}
        assert not [where for where, name, _ in calls() if name in loads]
        for where, name, node in calls():
            pickled = [
                k for k in node.keywords if k.arg == "allow_pickle" and ast.unparse(k.value) != "False"
            ]
            assert not pickled, f"{where}: {name} with allow_pickle"

    def test_draws_say_from_where(self) -> None:
        # Only initialisation and dropout, which run inside scoped_seed, draw from the global generator.
        drawing = re.compile(r"torch\.(rand|randn|randint|randperm|normal|bernoulli|multinomial)(_like)?")
        for where, name, node in calls():
            if drawing.fullmatch(name):
                assert any(keyword.arg == "generator" for keyword in node.keywords), where
            seeds = re.search(r"(^|\.)(manual_seed|manual_seed_all|set_rng_state)$", name)
            assert not seeds or "core/types.py" in where, f"{where}: seeds by itself"

    def test_tables_for_people_go_through_one_writer(self) -> None:
        writers = {where.rpartition(":")[0] for where, name, _ in calls() if name.startswith("csv.")}
        writers = {where for where in writers if "writer" in (ROOT / where).read_text(encoding="utf-8")}
        assert all("datasets" in where for where in writers), (
            "errors.csv_line keeps names from being formulas"
        )


class TestLegibility:
    def test_the_map_lists_every_file(self) -> None:
        page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
        missing = [str(p.relative_to(SRC)) for p in FILES if p.stem != "__init__" and p.name not in page]
        assert not missing, f"docs/architecture.md does not mention {missing}"

    def test_there_are_few_rooms_and_short_functions(self) -> None:
        assert len(FILES) <= 100
        lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
        assert statistics.median(lengths.values()) <= 400
        # Of code: a file of 380 lines has about 240 of it, the rest are docstrings, comments and blank lines.
        assert statistics.median(n_lines_of_code(path) for path in FILES) <= 250
        long = {path.name for path, n_lines in lengths.items() if n_lines > 700}
        assert long <= {"estimator.py"}, long
        for path in FILES:
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    n_lines = (node.end_lineno or 0) - node.body[0].lineno + 1
                    assert n_lines <= 60, f"{path.relative_to(ROOT)}: {node.name} has {n_lines} lines"

    def test_no_file_is_a_drawer_for_everything(self) -> None:
        drawers = {"utils", "util", "helpers", "helper", "common", "base", "misc", "tools"}
        assert not [path for path in FILES if drawers & set(path.relative_to(SRC).with_suffix("").parts)]


class TestExports:
    def test_all_names_resolve(self) -> None:
        for name in anchorinv.__all__:
            assert getattr(anchorinv, name) is not None
        assert len(set(anchorinv.__all__)) == len(anchorinv.__all__)
        assert sorted(dir(anchorinv)) == sorted(anchorinv.__all__)

    def test_type_checkers_see_the_same_names_from_the_same_places(self) -> None:
        seen = set()
        for node in ast.walk(tree(SRC / "__init__.py")):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anchorinv."):
                home = __import__(node.module, fromlist=["_"])
                for alias in node.names:
                    seen.add(alias.name)
                    assert getattr(anchorinv, alias.name) is getattr(home, alias.name)
        assert seen == set(anchorinv.__all__) - {"__version__"}

    def test_other_names_are_refused(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'AnchorInv'"):
            anchorinv.AnchorInv  # noqa: B018
