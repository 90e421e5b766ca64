"""What the package exports: the public names, sorted, importable, and nothing heavy behind the import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_llmperf

PACKAGE = Path(pytest_llmperf.__file__).parent
HEAVY = ("scipy", "numpy", "httpx", "pydantic", "pynvml", "rich", "psutil")


def test_exported_names_are_sorted_and_resolve() -> None:
    assert list(pytest_llmperf.__all__) == sorted(pytest_llmperf.__all__)
    for name in pytest_llmperf.__all__:
        assert getattr(pytest_llmperf, name).__name__ == name


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pytest_llmperf.nonsense


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_module_says_what_it_is_and_what_it_exports(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "no module docstring"
    exported = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    ]
    for names in exported:
        assert isinstance(names, ast.List)
        defined = {
            found
            for node in tree.body
            for found in (
                [node.name]
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
                else [target.id for target in node.targets if isinstance(target, ast.Name)]
                if isinstance(node, ast.Assign)
                else [node.target.id]
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
                else [alias.asname or alias.name for alias in node.names]
                if isinstance(node, ast.Import | ast.ImportFrom)
                else []
            )
        }
        if path.name != "__init__.py":
            assert {ast.literal_eval(element) for element in names.elts} <= defined


def test_plugin_without_the_option_imports_nothing_heavy(tmp_path: Path) -> None:
    """A run without --llmperf pays for none of the libraries behind it."""
    (tmp_path / "test_plain.py").write_text(
        "import sys\n"
        f"def test_plain():\n    assert [name for name in {HEAVY!r} if name in sys.modules] == []\n"
        "    assert 'pytest_llmperf.plugin' in sys.modules\n"
        "    assert 'pytest_llmperf.suite' in sys.modules\n"
    )
    (tmp_path / "chat.llmperf.toml").write_text("[tests.chat]\nworkload = 'chat'\nconcurrency = 1\nrequests = 9\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:xdist",
         "-p", "no:hypothesispytest", "-p", "no:anyio", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    assert "1 passed, 1 skipped" in run.stdout
