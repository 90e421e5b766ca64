"""``pytest-llmperf baseline refresh|promote|prune``: every one explicit, with a reason or a ``--yes``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.provenance import provenance, utc_now
from pytest_llmperf.baseline.refresh import old_and_new, two_modes
from pytest_llmperf.baseline.schema import BaselineFile, Entry
from pytest_llmperf.baseline.select import file_created, pep440
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.cli.entries import open_store
from pytest_llmperf.cli.promotion import Promotion, doubts, promotion
from pytest_llmperf.cli.tables import change_rows, table
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.reports.jsonfile import REPORT_NAME, read_report
from pytest_llmperf.result import RunReport, TestReport
from pytest_llmperf.settings import load_settings

__all__ = ["configure"]

Adder = Callable[[str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]


def configure(add: Adder) -> None:
    """Declare the arguments; ``add`` makes the command."""
    refresh = add("refresh", _refresh, "measure again and store it as a new session: runs pytest")
    refresh.add_argument("--reason", required=True, metavar="TEXT", help="why; stored with the session")
    refresh.add_argument("--replace", action="store_true", help="keep no earlier session")
    refresh.add_argument("--force", action="store_true", help="store also launches that look bimodal or not valid")
    refresh.add_argument("tests", nargs="*", metavar="ARG", help="node ids, files; pytest's own options after --")
    promote = add("promote", _promote, "accept what a report recorded as a new session, without running anything")
    promote.add_argument("report", type=Path, metavar="REPORT", help="report.json or the folder that holds it")
    promote.add_argument("--test", action="append", default=[], metavar="NODEID", help="only this test (repeatable)")
    promote.add_argument("--reason", required=True, metavar="TEXT", help="why; stored with the session")
    promote.add_argument("--replace", action="store_true", help="keep no earlier session")
    promote.add_argument("--force", action="store_true", help="in spite of what speaks against it")
    prune = add("prune", _prune, "remove old sessions or versions; shows what would go unless --yes is given")
    prune.add_argument("--older-than", type=_whole, metavar="DAYS", help="sessions older than that")
    prune.add_argument("--keep-versions", type=_whole, metavar="N", help="all but the N newest versions of each test")
    prune.add_argument("--yes", action="store_true", help="remove it")


def _refresh(arguments: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "pytest", "--llmperf", "--llmperf-refresh", "--llmperf-reason", arguments.reason]
    command += ["--llmperf-replace"] if arguments.replace else []
    command += ["--llmperf-force"] if arguments.force else []
    command += [f"--llmperf-baselines={arguments.baselines}"] if arguments.baselines is not None else []
    sys.stdout.flush()
    # Under --json the run's text goes where errors go, and what it stored is told after.
    status = subprocess.call([*command, *arguments.tests], stdout=sys.stderr if arguments.json else None)
    if arguments.json:
        print(json.dumps({"command": [*command, *arguments.tests], "exit_status": status}, indent=1))
    return status if status >= 0 else 128 - status


def _promote(arguments: argparse.Namespace) -> int:
    store = open_store(arguments)
    report = read_report(arguments.report)
    folder = arguments.report if arguments.report.is_dir() else arguments.report.parent
    tests = _wanted(report, arguments.test, str(folder / REPORT_NAME))
    if not arguments.reason.strip():
        raise UsageError("--reason: empty; say why this is the new baseline")
    who, pool = provenance(Path.cwd()), load_settings(Path.cwd(), servers=False).pool
    promotions = [promotion(report, folder, test, who, arguments.reason.strip(), pool) for test in tests]
    entries = [_entry(store, each) for each in promotions]
    against = [
        f"{test.nodeid}: {doubt}"
        for test, each, entry in zip(tests, promotions, entries, strict=True)
        for doubt in (*doubts(report, test), *_modes(each, entry))
    ]
    if against and not arguments.force:
        raise UsageError("nothing was stored, as (--force stores it all the same):\n  " + "\n  ".join(against))
    told = []
    for each, entry in zip(promotions, entries, strict=True):
        rows = old_and_new(entry, each.session)
        store.append(
            each.key, each.identity, each.session, samples=each.samples, definitions=each.definitions,
            replace=arguments.replace,
        )  # fmt: skip
        told.append({"path": each.key.path, "test": each.key.test, "session": each.session.id,
                     "notes": each.notes, "metrics": [asdict(row) for row in rows]})  # fmt: skip
        if not arguments.json:
            print(f"{each.key.test}\n{store.location}/{each.key.path}: session {each.session.id} stored")
            print(table((("metric", "old", "new", "change", "", "launches"), *change_rows(rows))))
            print("".join(f"note: {note}\n" for note in (*each.notes, *_alone(store, each))))
    if arguments.json:
        print(json.dumps({"location": store.location, "forced": against, "stored": told}, indent=1))
    elif against:
        print("forced, in spite of:\n  " + "\n  ".join(against))
    return 0


def _wanted(report: RunReport, names: Sequence[str], where: str) -> list[TestReport]:
    known = {test.nodeid: test for test in report.tests}
    for name in names:
        if name not in known:
            raise UsageError(f"--test {name!r} is not in {where}; it holds: {', '.join(known) or 'no tests'}")
    if not known:
        raise UsageError(f"{where} holds no tests")
    return [known[name] for name in names] if names else list(known.values())


def _entry(store: Store, each: Promotion) -> Entry | None:
    file = store.read(each.key)
    return None if file is None else file.entries.get(each.identity.digest())


def _modes(each: Promotion, entry: Entry | None) -> list[str]:
    return two_modes((*(() if entry is None else entry.sessions), each.session))


def _alone(store: Store, each: Promotion) -> list[str]:
    entry = _entry(store, each)
    if entry is None or len(entry.sessions) > 1:
        return []
    return ["one session is all there is: it rarely acquits; refresh on other days too"]


@dataclass(frozen=True, slots=True)
class _Pruned:
    path: str
    what: str
    sessions: dict[str, list[str]] | None
    """None: the whole file."""


def _prune(arguments: argparse.Namespace) -> int:
    if arguments.older_than is None and arguments.keep_versions is None:
        raise UsageError("say what is to go: --older-than DAYS, --keep-versions N or both")
    store = open_store(arguments)
    files = {}
    for path, file in store.walk():
        if isinstance(file, BaselineError):
            print(f"not touched: {file}", file=sys.stderr)
        else:
            files[path] = file
    gone = _old_versions(files, arguments.keep_versions) if arguments.keep_versions is not None else {}
    if arguments.older_than is not None:
        oldest = utc_now() - timedelta(days=arguments.older_than)
        gone = {**{path: old for path, file in files.items() if (old := _old_sessions(path, file, oldest))}, **gone}
    for path, each in sorted(gone.items()) if arguments.yes else ():
        store.remove(path, each.sessions)
    done = "removed" if arguments.yes else "would go"
    if arguments.json:
        shown = [asdict(each) for _, each in sorted(gone.items())]
        print(json.dumps({"location": store.location, "removed": arguments.yes, "files": shown}, indent=1))
    else:
        print("\n".join(f"{done}: {path}: {each.what}" for path, each in sorted(gone.items())) or "nothing to remove")
        if gone and not arguments.yes:
            print("nothing was removed; add --yes to do it")
    return 1 if gone and not arguments.yes else 0


def _old_versions(files: dict[str, BaselineFile], keep: int) -> dict[str, _Pruned]:
    """PEP 440 order where every version of a test has it, else by the newest session."""
    groups: dict[tuple[str, ...], list[tuple[str, Key, str]]] = defaultdict(list)
    for path, file in files.items():
        engine, _, *rest = path.split("/")
        key = Key.of(next(iter(file.entries.values())).identity(), file.test)
        groups[engine, *rest].append((path, key, file_created(file)))
    gone = {}
    for group in groups.values():
        versions = {path: pep440(key.version) for path, key, _ in group}
        ordered = None not in versions.values()
        ranked = sorted(group, key=lambda each: (versions[each[0]], each[2]) if ordered else each[2], reverse=True)
        for path, key, _ in ranked[keep:]:
            gone[path] = _Pruned(path, f"version {key.version}: {keep} newer ones are kept", None)
    return gone


def _old_sessions(path: str, file: BaselineFile, oldest: datetime) -> _Pruned | None:
    old = {
        digest: [session.id for session in entry.sessions if datetime.fromisoformat(session.created) < oldest]
        for digest, entry in file.entries.items()
    }
    number = sum(map(len, old.values()))
    if not number:
        return None
    total = sum(len(entry.sessions) for entry in file.entries.values())
    return _Pruned(path, f"{number} of {total} sessions, from before {oldest:%Y-%m-%d}", old)


def _whole(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 100000")
    return int(text)
