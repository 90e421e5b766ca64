"""Print one of the README's set-up commands: the line of code below the marker ``<!-- command: NAME -->``."""

import re
import sys
from pathlib import Path


def command(name: str) -> str:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- command: {re.escape(name)} -->\s*```[a-z]*\n(.*?)\n```", readme, re.DOTALL)
    if found is None or "\n" in found[1]:
        raise SystemExit(f"README.md has no one-line command {name!r}")
    return found[1]


if __name__ == "__main__":
    print(command(sys.argv[1]))
