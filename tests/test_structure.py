"""How the package is laid out; `make lint` runs this, beside the contracts of import-linter."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import flowzoo
from tests.scheduling import SECONDS

PACKAGE = Path(flowzoo.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
OF_ALL_ROOMS = {"contract", "refused", "golden", "runs", "fuzz"}
"""Folders of tests by kind: a contract of all parts, lines of errors, references, recorded runs."""
MOST_FILES = 26
"""Python files that a folder may hold before it is split by subject."""
MOST_LATE_IMPORTS = 200
"""Import statements inside functions: of libraries and rooms that are slow to load."""


def test_a_public_class_name_has_one_meaning():
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    del places["Options"]  # of every command, whose module says which
    assert len(places) > 200, "looked in the wrong place"
    assert {name: results for name, results in places.items() if len(results) > 1} == {}


def test_a_folder_says_what_it_is_for_and_is_not_crowded():
    for folder in {path.parent for path in FILES}:
        start = folder / "__init__.py"
        message = ast.get_docstring(ast.parse(start.read_text(encoding="utf-8")))
        assert message, f"{start} has no docstring"
        count = len(list(folder.glob("*.py")))
        assert count <= MOST_FILES, f"{folder} holds {count} files: split it by subject"


def test_tests_are_in_the_folders_of_rooms_or_kinds():
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        room = path.parent.relative_to(tests)
        homes = [folder / room for folder in (PACKAGE, PACKAGE.parent)]  # benchmarks and tools too
        known = str(room) in OF_ALL_ROOMS or any(home.is_dir() for home in homes)
        assert known, f"{path}: there is no flowzoo/{room}"


def test_imports_stand_at_the_top_where_they_cost_nothing():
    statements = {
        (path, statement.lineno)
        for path in FILES
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in ast.walk(function)
        if isinstance(statement, ast.Import | ast.ImportFrom)
    }
    assert 100 < len(statements) <= MOST_LATE_IMPORTS


def test_every_listed_mutation_can_be_made():
    script = Path(__file__).with_name("mutations.py")
    done = subprocess.run([sys.executable, script, "--list"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 60


def test_every_group_that_is_scheduled_first_exists():
    files = list(Path(__file__).parent.rglob("test_*.py"))
    names = {path.name for path in files}
    marks = "".join(path.read_text(encoding="utf-8") for path in files)
    for group in SECONDS:
        file = f"{group.rpartition('-')[0]}.py"  # of a sandbox's tests: file and backend
        of_many = f'xdist_group(f"{group}+' in marks  # of names that are made
        assert {group, file} & names or f'xdist_group("{group}")' in marks or of_many, group
