"""Say whether the servers that performance tests run on are configured otherwise than at another commit.

    python3 .ci/engine_pin.py COMMIT

Prints ``changed`` or ``unchanged``: whether servers, variants or the default server of ``[tool.llmperf]`` or
``llmperf.toml`` differ between COMMIT and the working tree. A file that cannot be read counts as changed.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

KEYS = ("default_server", "servers", "variants")


def pins(pyproject: str, own: str) -> dict[str, object]:
    """What is pinned, from the texts of the two files."""
    shared = tomllib.loads(pyproject).get("tool", {}).get("llmperf", {})
    return {key: table[key] for table in (shared, tomllib.loads(own)) for key in KEYS if key in table}


def at(commit: str, name: str) -> str:
    done = subprocess.run(["git", "show", f"{commit}:{name}"], capture_output=True, text=True, check=False)  # noqa: S607
    return done.stdout if done.returncode == 0 else ""


def here(name: str) -> str:
    path = Path(name)
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def main(commit: str) -> str:
    known = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    if subprocess.run(known, capture_output=True, check=False).returncode != 0:
        raise SystemExit(f"{commit} is no commit of this clone: fetch it (fetch-depth: 0)")
    names = ("pyproject.toml", "llmperf.toml")
    try:
        same = pins(*(at(commit, name) for name in names)) == pins(*(here(name) for name in names))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        same = False
    return "unchanged" if same else "changed"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(main(sys.argv[1]))
