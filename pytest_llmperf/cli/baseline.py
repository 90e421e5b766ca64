"""``pytest-llmperf baseline``: what is stored, how two of them differ, and every way to change the store.

Exit status: 0 done; 1 ``list``: a file is refused, ``prune``: ``--yes`` is missing; 2 wrong usage, a refused file or
promotion; ``refresh`` ends as the pytest run that it starts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.refresh import Row, compare
from pytest_llmperf.baseline.schema import BaselineFile
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.cli import baseline_change
from pytest_llmperf.cli.entries import Chosen, add_store, choose, choose_one, open_store
from pytest_llmperf.cli.tables import change_rows, table
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.identity import Identity
from pytest_llmperf.units import format_quantity

__all__ = ["SUMMARY", "configure"]

SUMMARY = "stored baselines: list, show, diff, refresh, promote, prune"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    kinds = parser.add_subparsers(dest="kind", metavar="list|show|diff|refresh|promote|prune", required=True)
    what = "a path of the store, a node id or its end, or a digest of 'baseline list'; #DIGEST picks a parameter set"

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = kinds.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        add_store(command)
        return command

    add("list", _list, "every stored test, with its engine version and GPUs")
    show = add("show", _show, "one test or more: identity, sessions, values")
    show.add_argument("what", metavar="WHAT", help=what)
    diff = add("diff", _diff, "two entries side by side: values with the effect, identities field by field")
    diff.add_argument("before", metavar="A", help=what)
    diff.add_argument("after", metavar="B", nargs="?", help="as A; without it A's newest session beside those before")
    baseline_change.configure(add)


def _list(arguments: argparse.Namespace) -> int:
    store = open_store(arguments)
    files: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    for path, file in store.walk():
        if isinstance(file, BaselineError):
            refused.append({"path": path, "reason": str(file)})
        else:
            files.append(_summary(path, file))
    if arguments.json:
        print(json.dumps({"location": store.location, "files": files, "refused": refused}, indent=1))
        return 1 if refused else 0
    if not files and not refused:
        print(f"{store.location} holds no baseline yet; make one with: pytest --llmperf --llmperf-refresh")
        return 0
    head = ("test", "engine", "version", "quant", "GPUs", "model", "digest", "launches", "newest session")
    print(table((head, *_listed(files))))
    for each in refused:
        print(f"refused: {each['reason']}")
    return 1 if refused else 0


def _listed(files: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, ...]]:
    for file in files:
        shown = tuple(str(file[name]) for name in ("test", "engine", "version", "quantization", "gpus", "model"))
        for entry in file["entries"]:
            launches = f"{entry['launches']} in {entry['sessions']}"
            yield (*shown, entry["digest"], launches, entry["newest"])


def _summary(path: str, file: BaselineFile) -> dict[str, Any]:
    key = Key.of(next(iter(file.entries.values())).identity(), file.test)
    entries = [
        {
            "digest": digest,
            "sessions": len(entry.sessions),
            "launches": sum(len(session.launches) for session in entry.sessions),
            "requests": sum(launch.n_requests for session in entry.sessions for launch in session.launches),
            "newest": entry.sessions[-1].created,
        }
        for digest, entry in file.entries.items()
    ]
    return {"path": path, **asdict(key), "entries": entries}


def _show(arguments: argparse.Namespace) -> int:
    store = open_store(arguments)
    found = choose(store, arguments.what)
    if arguments.json:
        print(json.dumps([_content(each) for each in found], indent=1))
        return 0
    print("\n\n".join(_shown(store, each) for each in found))
    return 0


def _content(chosen: Chosen) -> dict[str, Any]:
    entry = chosen.entry.model_dump(mode="json")
    return {"path": chosen.path, **asdict(chosen.key), "digest": chosen.digest, **entry}


def _shown(store: Store, chosen: Chosen) -> str:
    sessions = chosen.entry.sessions
    identity = chosen.entry.identity()
    facts = [
        (kind, name, fact.value, fact.source)
        for kind, facts in _classes(identity)
        for name, fact in sorted(facts.items())
    ]
    history = [
        (each.created, str(len(each.launches)), each.by, each.commit or "no commit", each.node, each.reason)
        for each in sessions
    ]
    names = {name: None for session in sessions for launch in session.launches for name in launch.metrics}
    values = [
        (row.metric, format_quantity(row.after, row.unit), *_range(chosen, row), str(row.launches_after))
        for row in compare((), sessions)
        if row.metric in names
    ]
    parts = (
        f"{chosen.test}\n{store.location}/{chosen.name}",
        table((("session", "launches", "by", "commit", "node", "reason"), *history)),
        table((("metric", "mean", "lowest", "highest", "launches"), *values)),
        table((("", "fact", "value", "learnt"), *facts)),
    )
    return "\n\n".join(parts)


def _range(chosen: Chosen, row: Row) -> tuple[str, str]:
    values = [
        launch.metrics[row.metric]
        for session in chosen.entry.sessions
        for launch in session.launches
        if row.metric in launch.metrics
    ]
    finite = [value for value in values if value is not None]
    highest = None if not finite else max(finite)
    unbounded = len(finite) < len(values)
    return (
        format_quantity(min(finite, default=None), row.unit),
        "∞" if unbounded else format_quantity(highest, row.unit),
    )


def _classes(identity: Identity) -> Sequence[tuple[str, Mapping[str, Any]]]:
    return (
        ("input", identity.input),
        ("environment", identity.environment),
        ("consequence", identity.consequence),
    )


def _diff(arguments: argparse.Namespace) -> int:
    store = open_store(arguments)
    before, after = _sides(choose_one(store, arguments.before), arguments.after, store)
    rows = compare(
        before.entry.sessions, after.entry.sessions, (before.entry.definitions, after.entry.definitions)
    )  # fmt: skip
    differences = _differences(before, after)
    if arguments.json:
        content = {
            "before": before.name,
            "after": after.name,
            "metrics": [asdict(row) for row in rows],
            "identity": [dict(zip(("kind", "name", "before", "after"), each, strict=True)) for each in differences],
        }
        print(json.dumps(content, indent=1))
        return 0
    print(f"A  {before.name}{_extent(before)}\nB  {after.name}{_extent(after)}\n")
    print(table((("metric", "A", "B", "change", "", "launches"), *change_rows(rows))))
    print()
    print(table((("", "field", "A", "B"), *differences)) if differences else "the identities are the same")
    return 0


def _sides(chosen: Chosen, other: str | None, store: Store) -> tuple[Chosen, Chosen]:
    if other is not None:
        return chosen, choose_one(store, other)
    *earlier, newest = chosen.entry.sessions
    if not earlier:
        raise UsageError(f"{chosen.name} has one session, and none before it; name another entry as B")
    parts = [chosen.entry.model_copy(update={"sessions": tuple(each)}) for each in (earlier, [newest])]
    return replace(chosen, entry=parts[0]), replace(chosen, entry=parts[1])


def _extent(chosen: Chosen) -> str:
    """Which sessions are meant."""
    sessions = chosen.entry.sessions
    many = f"{len(sessions)} sessions, the last of" if len(sessions) > 1 else "the session of"
    return f"  {many} {sessions[-1].created}"


def _differences(before: Chosen, after: Chosen) -> list[tuple[str, str, str, str]]:
    """Parts of the key that no fact holds, then facts; one that a side lacks is "not set"."""
    one, other = before.entry.identity(), after.entry.identity()
    found = [
        ("key", field.name, getattr(before.key, field.name), getattr(after.key, field.name))
        for field in fields(Key)
        if field.name not in one.input and getattr(before.key, field.name) != getattr(after.key, field.name)
    ]
    for (kind, left), (_, right) in zip(_classes(one), _classes(other), strict=True):
        for name in sorted({*left, *right}):
            values = [facts[name].value if name in facts else "not set" for facts in (left, right)]
            if values[0] != values[1]:
                found.append((kind, name, values[0], values[1]))
    return found
