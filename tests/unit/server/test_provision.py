"""What a launch needs is there before it, or it is said what is missing; versions live side by side."""

from __future__ import annotations

import shutil
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import pytest
import xllamacpp

from pytest_llmperf.engines import ENGINES
from pytest_llmperf.errors import ConfigError, InfraError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.environments import installed_version, program_version
from pytest_llmperf.server.launch import launch
from pytest_llmperf.server.provision import Provisioned, provision

# The package under another version: its module hands over to the one that is installed.
MODULE = f"""
import importlib.util, sys
folder = {str(Path(xllamacpp.__file__).parent)!r}
spec = importlib.util.spec_from_file_location("xllamacpp", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["xllamacpp"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


def spec(**fields: Any) -> ServerSpec:
    return ServerSpec.model_validate({"name": "s", "engine": "embedded", **fields})


def write_wheel(folder: Path, version: str) -> None:
    info = f"xllamacpp-{version}.dist-info"
    with zipfile.ZipFile(folder / f"xllamacpp-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("xllamacpp/__init__.py", MODULE)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: xllamacpp\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole package index, with versions 1.0, 1.1 and 3.0, and caches of the test's own."""
    folder = tmp_path / "index"
    folder.mkdir()
    for version in ("1.0", "1.1", "3.0"):
        write_wheel(folder, version)
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "none").as_uri())
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setattr("pytest_llmperf.server.environments.cache_dir", lambda: tmp_path / "cache")
    return folder


@pytest.fixture
def fake_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """``fake_uv(script)`` stands in for uv; gives the file that the script may note its calls in as ``$NOTES``."""

    def install(script: str) -> Path:
        folder, notes = tmp_path / "bin", tmp_path / "notes"
        folder.mkdir()
        notes.touch()
        (folder / "uv").write_text(f"#!/bin/sh\nNOTES={notes}\n{script}\n")
        (folder / "uv").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return notes

    return install


def real_uv() -> str:
    from uv import find_uv_bin

    return find_uv_bin()


def test_two_versions_are_launched_side_by_side_and_each_says_which_it_is(tmp_path: Path, index: Path) -> None:
    specs = [spec(version=version, max_model_len=256) for version in ("1.0", "1.1")]
    ready = [provision(each) for each in specs]
    shutil.rmtree(index)  # nothing is fetched any more
    with (
        launch(specs[0], log_dir=tmp_path, provisioned=ready[0]) as one,
        launch(specs[1], log_dir=tmp_path, provisioned=ready[1]) as two,
        launch(spec(max_model_len=256), log_dir=tmp_path) as own,
    ):
        versions = [live.identity.value("version") for live in (one, two, own)]
        assert versions == ["1.0", "1.1", installed("xllamacpp")]
        programs = [live.command[0] for live in (one, two, own)]
        assert [Path(program).parts[-3] for program in programs[:2]] == ["xllamacpp-1.0", "xllamacpp-1.1"]
        assert programs[2] == sys.executable
        assert len({live.identity.digest() for live in (one, two, own)}) == 3


def test_an_environment_is_made_once_and_again_when_it_is_broken(index: Path, fake_uv: Callable[[str], Path]) -> None:
    notes = fake_uv(f'echo "$1" >> $NOTES\nexec {real_uv()} "$@"')
    found: list[Provisioned] = []
    threads = [threading.Thread(target=lambda: found.append(provision(spec(version="1.0")))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert notes.read_text().split() == ["venv", "pip"]
    python = Path(found[0].program[0])
    python.unlink()  # as when the Python under it was removed
    assert provision(spec(version="1.0")) == found[0]
    assert notes.read_text().split() == ["venv", "pip"] * 2
    (python.parent.parent / ".complete").unlink()  # as when its making was killed
    assert provision(spec(version="1.0")) == found[0]
    assert notes.read_text().split() == ["venv", "pip"] * 3
    assert installed_version(python, "xllamacpp") == "1.0"


def test_a_version_that_does_not_exist_names_some_that_do(index: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        provision(spec(version="2.0"))
    assert str(caught.value) == (
        "servers.s: version: '2.0': no wheel of xllamacpp for this Python and platform has that version; "
        "there are e.g. 1.1, 3.0"
    )
    with pytest.raises(ConfigError, match=r"version: '1\.00': the index calls this version '1\.0'; write it so"):
        provision(spec(version="1.00"))


def test_an_index_that_does_not_answer_is_infra(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(InfraError, match=r"xllamacpp==1\.0 cannot be installed: the package index does not answer"):
        provision(spec(version="1.0"))


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("error: failed to write: No space left on device (os error 28)", "the disk is full"),
        ("error: something new", "xllamacpp==1.0 cannot be installed: error: something new"),
        ("", "xllamacpp==1.0 cannot be installed: it says nothing"),
    ],
)
def test_trouble_of_the_installer_is_infra(
    index: Path, fake_uv: Callable[[str], Path], said: str, problem: str
) -> None:
    fake_uv(f"echo '{said}' >&2; exit 2")
    with pytest.raises(InfraError) as caught:
        provision(spec(version="1.0"))
    assert problem in str(caught.value)


def test_a_cache_that_can_not_be_written_is_infra(tmp_path: Path, index: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(InfraError, match=r"xllamacpp==1\.0 cannot be installed in .*: (Not a directory|File exists)"):
        provision(spec(version="1.0"))


def test_without_uv_it_is_said_how_to_get_it(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "uv", None)
    with pytest.raises(ConfigError, match=r'servers\.s: version: .* needs uv, .*"pytest-llmperf\[versions\]"'):
        provision(spec(version="1.0"))


def test_an_executable_is_a_python_that_has_the_engine(tmp_path: Path, index: Path) -> None:
    program = provision(spec(version="1.0")).program[0]
    placed = program.replace("xllamacpp-1.0", "xllamacpp-{version}")
    assert provision(spec(executable=program)) == provision(spec(version="1.0", executable=placed))
    with launch(spec(executable=program), log_dir=tmp_path) as live:
        assert live.identity.value("version") == "1.0"
        assert live.identity.value("executable") == program
    with pytest.raises(ConfigError, match=r"executable: '/o/\{version\}/py' is no program \(looked for /o/1\.0/py\)"):
        provision(spec(version="1.0", executable="/o/{version}/py"))
    copy = tmp_path / "9.9"
    copy.symlink_to(Path(program).parent.parent, target_is_directory=True)
    with pytest.raises(ConfigError, match=r"version: '9\.9' was asked for, but .* has xllamacpp 1\.0"):
        provision(spec(version="9.9", executable=str(tmp_path / "{version}" / "bin" / "python")))
    with pytest.raises(ConfigError, match=r"executable: /bin/false is no Python that runs; .* give the path of that"):
        provision(spec(executable="/bin/false"))


def test_a_console_script_stands_for_its_python(tmp_path: Path, index: Path) -> None:
    program = provision(spec(version="1.0")).program[0]
    script = tmp_path / "xllamacpp"
    script.write_text(f"#!{program}\nraise SystemExit(1)\n")
    script.chmod(0o755)
    found = provision(spec(executable=str(script)))
    assert (found.program, found.version) == ((program,), "1.0")


def test_a_python_without_the_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "embedded", replace(ENGINES["embedded"], distribution="no-such-package"))
    with pytest.raises(ConfigError, match=r"executable: .* is a Python without no-such-package"):
        provision(spec(executable=sys.executable))


def test_what_can_not_be_launched_is_refused_and_a_running_server_needs_nothing() -> None:
    with pytest.raises(ConfigError, match=r"servers\.s: engine: Triton can't be launched by this version"):
        provision(spec(engine="triton"))
    with pytest.raises(ConfigError, match=r"servers\.s: quantization: the embedded engine has no such parameter"):
        provision(spec(quantization="fp8"))
    assert provision(spec(url="http://127.0.0.1:1")) == Provisioned()


def test_an_engine_on_no_index_has_no_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "embedded", replace(ENGINES["embedded"], distribution=None))
    with pytest.raises(ConfigError, match=r"version: the embedded engine is on no package index; give executable"):
        provision(spec(version="1.0"))


def script(path: Path, first: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first}\nimport sys\n")
    path.chmod(0o755)
    return path


def test_the_version_of_a_program_is_asked_of_its_python(tmp_path: Path) -> None:
    here = installed("xllamacpp")
    assert program_version(script(tmp_path / "a", f"#!{sys.executable}"), "xllamacpp") == here
    wrapped = f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''"
    assert program_version(script(tmp_path / "b", wrapped), "xllamacpp") == here
    assert program_version(script(tmp_path / "c", "#!/gone/bin/python3.11"), "xllamacpp") is None
    assert program_version(script(tmp_path / "d", f"#!{sys.executable}"), "no-such-package") is None
    script(tmp_path / "bin" / "python", "#!/bin/sh\necho 7.7; exit")
    beside = script(tmp_path / "bin" / "e", "#!/bin/sh")
    linked = tmp_path / "e"
    linked.symlink_to(beside)
    assert [program_version(program, "mine") for program in (beside, linked)] == ["7.7", "7.7"]
    assert program_version(tmp_path / "none", "xllamacpp") is None


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerSpec:
    """A vLLM whose package is another one, of a version that is known: what is looked at is who is asked."""
    monkeypatch.setitem(ENGINES, "vllm", replace(ENGINES["vllm"], distribution="xllamacpp"))
    (tmp_path / "model").mkdir()
    return spec(engine="vllm", model=str(tmp_path / "model"))


def test_an_executable_of_any_version_is_taken_with_the_version_that_it_has(vllm: ServerSpec, tmp_path: Path) -> None:
    program = script(tmp_path / "vllm", f"#!{sys.executable}")
    found = provision(vllm.model_copy(update={"executable": str(program)}))
    assert found == Provisioned(str(tmp_path / "model"), (str(program),), installed("xllamacpp"))
    silent = script(tmp_path / "other" / "vllm", "#!/bin/sh")
    unknown = vllm.model_copy(update={"executable": str(silent), "swap_space": 4.0})
    with pytest.raises(
        ConfigError, match=r"swap_space: vLLM has no such parameter: it is gone since 0\.18; use kv_off"
    ):
        provision(unknown)
    assert provision(unknown.model_copy(update={"swap_space": None})).version is None


def test_an_engine_that_is_nowhere_is_asked_for(
    vllm: ServerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ConfigError, match=r"vllm is neither beside this Python nor on the PATH; give executable, the"):
        provision(vllm)
    program = script(tmp_path / "bin" / "vllm", f"#!{sys.executable}")
    assert provision(vllm).program == (str(program),)
    with pytest.raises(
        ConfigError, match=r"sglang is not installed beside this Python; give executable, .* or version"
    ):
        provision(vllm.model_copy(update={"engine": "sglang"}))


def test_companions_are_installed_beside_the_engine(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = "torch-2.0.dist-info"
    with zipfile.ZipFile(index / "torch-2.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setitem(ENGINES, "embedded", replace(ENGINES["embedded"], companions=("torch",)))
    [python] = provision(spec(version="1.0")).program
    assert installed_version(Path(python), "torch") == "2.0"
