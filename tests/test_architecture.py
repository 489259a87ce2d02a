"""Who may import whom: keras_transformer stands alone, export and training stand on it.

Read from the syntax trees of all files, so that imports inside functions count too.
"""

import ast
import graphlib
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).parents[1]
# Package: the modules of its siblings that it may import, with all below them.
PACKAGES = {
    "keras_transformer": [],
    "attention_viewer": ["keras_transformer"],
    "export": ["keras_transformer"],
    "training": ["keras_transformer", "attention_viewer.summary"],
}
# Computation is written with keras.ops; these are the ways between text and tensors, and the
# one loop that keras.ops can't express (see there).
MAY_IMPORT_TENSORFLOW = {
    "exported.py",
    "inspection.py",
    "segmentation.py",
    "tokenizer.py",
    "translator.py",
}
MAY_IMPORT_TENSORFLOW_IN_A_FUNCTION = {"attention.py", "decoding.py"}
PRIVATE = ("keras.src", "tensorflow.python", "tensorflow.core", "tensorboard.compat")


class Import(NamedTuple):
    """One imported module, for `from a import b` both "a" and "a.b"."""

    file: Path
    line: int
    module: str
    is_inside_function: bool

    def __str__(self):
        return f"{self.file.relative_to(PROJECT)}:{self.line} imports {self.module}"

    @property
    def package(self):
        return self.module.partition(".")[0]


def imports_of(file):
    """Return all imports of a Python file."""
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: relative import"
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found += [Import(file, node.lineno, module, id(node) in inside) for module in modules]
    return found


def files_of(package):
    files = sorted((PROJECT / package).rglob("*.py"))
    assert files
    return files


def imports_of_package(package):
    return [imported for file in files_of(package) for imported in imports_of(file)]


def is_below(module, parents):
    return any(f"{module}.".startswith(f"{parent}.") for parent in parents)


def names(imports):
    return [str(imported) for imported in imports]


def project_imports(file):
    """Return the modules of the project that a file imports, as files."""
    found = set()
    for imported in imports_of(file):
        path = PROJECT.joinpath(*imported.module.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                found.add(candidate)
    return found - {file}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_lies_below_it(package):
    siblings = {path.parent.name for path in PROJECT.glob("*/*.py")} - {package}
    wrong = [
        imported
        for imported in imports_of_package(package)
        if imported.package in siblings and not is_below(imported.module, PACKAGES[package])
    ]
    assert names(wrong) == []


def test_the_siblings_are_found_by_this_test():
    assert any(i.package == "keras_transformer" for i in imports_of_package("export"))
    assert any(i.package == "keras_transformer" for i in imports_of_package("training"))
    decoding = imports_of(PROJECT / "keras_transformer/decoding.py")
    assert [i.is_inside_function for i in decoding if i.package == "tensorflow"] == [True]


def test_the_model_is_written_with_keras_alone():
    wrong = []
    for imported in imports_of_package("keras_transformer"):
        if imported.package not in ("tensorflow", "tensorflow_text"):
            continue
        name = imported.file.name
        if name in MAY_IMPORT_TENSORFLOW:
            continue
        if name in MAY_IMPORT_TENSORFLOW_IN_A_FUNCTION and imported.is_inside_function:
            continue
        wrong.append(imported)
    assert names(wrong) == []


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_nothing_private_of_a_library_is_imported(package):
    wrong = [
        imported for imported in imports_of_package(package) if is_below(imported.module, PRIVATE)
    ]
    assert names(wrong) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_of_a_package_is_left_out_when_it_is_installed(package):
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    for folder in {file.parent for file in files_of(package)}:
        name = ".".join(folder.relative_to(PROJECT).parts)
        assert f'"{name}"' in text.partition("[tool.setuptools]")[2].partition("[tool.ruff]")[0]


def test_the_tensorboard_plugin_needs_neither_keras_nor_tensorflow():
    """Nor the rest of the project: TensorBoard stops if a plugin can't be imported."""
    seen, todo = set(), [PROJECT / "attention_viewer/plugin.py"]
    while todo:
        file = todo.pop()
        seen.add(file)
        at_import = [i for i in imports_of(file) if not i.is_inside_function]
        assert {i.package for i in at_import}.isdisjoint(
            {"keras", "tensorflow", "tensorflow_text", "keras_transformer"}
        ), file
        todo += project_imports(file) - seen
    assert len(seen) > 1


def test_imports_go_one_way_from_file_to_file():
    files = [file for package in PACKAGES for file in files_of(package)]
    graph = {file: project_imports(file) for file in files}
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(order) >= set(files)


def test_the_layers_stand_on_each_other_in_the_order_of_the_paper():
    lower = {
        "config.py": [],
        "masks.py": ["config.py"],
        "attention.py": ["masks.py"],
        "embedding.py": [],
        "feed_forward.py": [],
        "stack.py": ["attention.py", "embedding.py", "feed_forward.py"],
        "encoder.py": ["stack.py"],
        "decoder.py": ["masks.py", "stack.py"],
        "decoding.py": ["config.py"],  # knows no layer
        "tokenizer.py": ["config.py"],
    }
    for name, allowed in lower.items():
        imported = {path.name for path in project_imports(PROJECT / "keras_transformer" / name)}
        assert imported - {"__init__.py"} <= set(allowed), name


def test_the_configuration_needs_neither_keras_nor_tensorflow():
    for path in ("keras_transformer/config.py", "training/config.py", "training/corpus.py"):
        packages = {imported.package for imported in imports_of(PROJECT / path)}
        assert packages.isdisjoint({"keras", "tensorflow", "tensorflow_text"}), path


def test_the_client_needs_neither_keras_nor_tensorflow():
    files = [
        *files_of("export/client"),
        PROJECT / "export/protos.py",
        PROJECT / "export/__init__.py",
    ]
    for file in files:
        packages = {imported.package for imported in imports_of(file)}
        assert packages.isdisjoint({"keras", "tensorflow", "tensorflow_text"}), file
    needed = {path for file in files for path in project_imports(file)}
    assert needed <= set(files)
