"""Who may import whom. The table is the architecture; a new arrow must be entered here to exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pytest_llmperf"
PYTEST_ROOMS = {
    "plugin", "options", "markers", "planner", "fixtures", "session", "selection", "suite", "part", "benchmark_rows",
    "comparison_options", "drawing", "shown", "status",
}  # fmt: skip
STEPS = {
    "baseline", "cards", "catalog", "comparisons", "control", "differences", "engines", "errors", "gate", "identity",
    "inputs", "load", "metrics", "plan", "records", "result", "recordfile", "recount", "samples", "server", "settings",
    "stats", "stored", "synthetic", "telemetry", "units", "variables", "verdict",
}  # fmt: skip
ALLOWED: dict[str, set[str]] = {
    "__init__": {"engines", "errors", "identity", "plan", "records", "result", "stats"},
    "errors": set(),
    "units": set(),
    "identity": set(),
    "records": {"samples"},
    "samples": set(),
    "cards": set(),
    "signals": set(),
    "catalog": {"errors"},
    "inputs": {"errors"},
    "fields": {"units"},
    "lengths": {"fields", "inputs"},
    "workload": {"fields", "lengths"},
    "profile": {"fields"},
    "placeholders": set(),
    "commandline": set(),
    "serverspec": {"commandline", "fields", "placeholders", "units"},
    "plan": {"catalog", "fields", "lengths", "profile", "serverspec", "units", "workload"},
    "planning": {"errors", "inputs", "plan"},
    "settings": {"catalog", "errors", "fields", "identity", "lengths", "plan", "engines", "recount", "units"},
    "differences": {"identity", "plan"},
    "variables": {"engines", "errors", "identity", "plan", "settings"},
    "engines": {"plan", "identity", "records", "samples", "errors"},
    "control": {"engines", "identity", "load", "plan", "records", "errors"},
    "server": {"cards", "control", "engines", "plan", "identity", "records", "samples", "errors"},
    "telemetry": {"cards", "control", "engines", "plan", "identity", "records", "samples", "errors"},
    "load": {"inputs", "plan", "records", "errors"},
    "doctor": {"cards", "load", "plan", "records", "errors"},
    "stats": {"catalog"},
    "metrics": {"cards", "catalog", "records", "samples", "stats", "units", "errors"},
    "synthetic": {"identity", "plan"},
    "asked": set(),
    "suitefile": {"errors"},
    "limits": {"catalog", "errors", "plan", "units"},
    "tolerances": {"errors", "limits", "plan", "stats"},
    "expectations": {"catalog", "errors", "limits", "plan", "units"},
    "verdict": {"catalog"},
    "checks": {"stats", "catalog", "plan", "units", "verdict"},
    "gate": {"checks", "stats", "catalog", "plan", "units", "errors", "verdict"},
    "comparisons": {"fields", "verdict"},
    "result": {"comparisons", "plan", "identity", "samples", "stats", "gate"},
    "baseline": {"catalog", "errors", "fields", "identity", "plan", "stats"},
    "exchange": {"catalog", "comparisons", "errors", "plan", "result", "stats", "units"},
    "stored": {"result", "gate", "metrics", "records", "samples", "stats", "plan", "engines"},
    "recordfile": {"records", "samples", "errors"},
    "recount": {"records", "errors"},
    "reports": {"comparisons", "result", "gate", "units", "catalog", "plan", "identity", "errors"},
    "journal": {"reports", "result", "errors"},
    "measured": {"catalog", "metrics", "plan", "records", "samples", "stats"},
    "runner": STEPS | {"measured"},
    "campaign": STEPS | {"checks", "fields", "measured", "runner", "tolerances"},
    "cli": {
        "baseline", "cards", "catalog", "differences", "doctor", "errors", "identity", "measured", "metrics", "plan",
        "recordfile", "records", "reports", "result", "samples", "server", "settings", "stats", "stored", "telemetry",
        "units",
    },
    **{
        room: {
            "plan", "catalog", "units", "identity", "records", "campaign", "runner", "result", "reports", "errors",
            "baseline", "settings", "planning", "journal", "signals", "gate", "stored", "asked", "limits", "tolerances",
            "expectations", "suitefile", "variables", "exchange", *PYTEST_ROOMS,
        }
        for room in PYTEST_ROOMS
    },
}  # fmt: skip
ONLY_IN: dict[str, set[str]] = {
    "pytest": PYTEST_ROOMS,
    "pynvml": {"telemetry/nvml"},
    "httpx": {"control", "telemetry/prometheus"},
    "scipy": {"stats"},
    "psutil": {"server", "telemetry"},
    "docker": {"server/dock"},
    "rich": {"reports", "cli"},
    "fsspec": {"baseline/urls"},
    "packaging": {"baseline", "cli", "engines"},
    "xllamacpp": {"engines/embedded_server"},
    "numpy": {"metrics", "stats"},
    "tokenizers": {"recount"},
    "pytest_benchmark": {"benchmark_rows"},
}
"""Third-party library → rooms or modules that may import it."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Dotted names of everything imported, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module == "pytest_llmperf":
                yield from (f"pytest_llmperf.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_module_imports_only_what_its_room_may(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "pytest_llmperf":
            target = rest[0] if rest else "__init__"
            assert target == here or target in ALLOWED[here], f"{here} must not import {target}"
        elif top in ONLY_IN:
            module = path.relative_to(PACKAGE).as_posix().removesuffix(".py")
            assert here in ONLY_IN[top] or module in ONLY_IN[top], f"{module} must not import {top}"


def test_no_module_is_longer_than_three_hundred_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {path.name: length for path, length in lengths.items() if length > 300} == {}


def test_rooms_form_no_cycle() -> None:
    """Pytest's rooms know each other; all others are ordered."""
    arrows = {here: targets - {here} for here, targets in ALLOWED.items() if here not in PYTEST_ROOMS}
    done: set[str] = set()
    while arrows.keys() - done:
        free = {here for here in arrows.keys() - done if not (arrows[here] & arrows.keys()) - done}
        assert free, f"cycle among {sorted(arrows.keys() - done)}"
        done |= free
