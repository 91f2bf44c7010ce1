"""Set-up on a fresh machine: its checks before anything is written, and the steps that it skips."""

import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from testbed import bootstrap
from testbed.bootstrap import Machine, SetupError, Step, digest, java_major, missing

COMPLETE = Machine(
    python="/usr/bin/python3.12",
    python_version=(3, 12),
    has_venv=True,
    java_version=17,
    has_compiler=True,
    has_maven=True,
    free_memory_megabytes=8000,
    free_disk_megabytes=20_000,
)


def _missing(machine: Machine) -> str | None:
    return missing(machine, min_memory_megabytes=4096, min_disk_megabytes=2500)


def test_a_complete_machine_lacks_nothing() -> None:
    """Everything there: no complaint."""
    assert _missing(COMPLETE) is None


@pytest.mark.parametrize(
    ("changes", "message", "to_do"),
    [
        ({"python": None, "python_version": None}, "Python 3.11 or 3.12 is needed", "install python3.11 or python3.12"),
        ({"python_version": (3, 13)}, "Python 3.11 or 3.12 is needed", "install"),
        ({"has_venv": False}, "has no venv module", "apt install python3.12-venv"),
        ({"java_version": None}, "no java is on the PATH", "apt install openjdk-17-jdk-headless"),
        ({"java_version": 11}, "this is Java 11", "apt install openjdk-17-jdk-headless"),
        ({"has_compiler": False}, "no compiler (javac)", "apt install openjdk-17-jdk-headless"),
        ({"has_maven": False}, "no mvn is on the PATH", "apt install maven"),
        ({"free_memory_megabytes": 2000}, "4096 MB of free memory are needed and 2000 MB", "WEIR_MIN_MEMORY_MB"),
        ({"free_disk_megabytes": 100}, "2500 MB of free disk are needed", "WEIR_CACHE"),
    ],
)
def test_a_missing_requirement_is_one_line_with_the_remedy(
    changes: dict[str, object], message: str, to_do: str
) -> None:
    """Each thing a machine can lack has its own sentence, with the remedy in it."""
    line = _missing(replace(COMPLETE, **changes))  # type: ignore[arg-type]
    assert line is not None and "\n" not in line
    assert message in line and to_do in line


def test_unknown_memory_or_disk_is_no_complaint() -> None:
    """A machine without /proc is not refused for what cannot be known about it."""
    assert _missing(replace(COMPLETE, free_memory_megabytes=None, free_disk_megabytes=None)) is None


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2"', 11),
        ("command not found", None),
        ("", None),
    ],
)
def test_java_versions_of_all_ages_are_read(text: str, major: int | None) -> None:
    """Also the old scheme, where Java 8 called itself 1.8."""
    assert java_major(text) == major


@pytest.fixture
def step(tmp_path: Path) -> Callable[[], Step]:
    """A step with one input file and one result, as a new start of set-up would see it."""
    (tmp_path / "input").write_text("version 1")
    return lambda: Step("example", [tmp_path / "input"], tmp_path / "result", cache=tmp_path / "cache")


def test_a_finished_step_is_not_done_again_until_its_input_changes(step: Callable[[], Step], tmp_path: Path) -> None:
    """The stamp holds the inputs' hash: a new content, or a missing result, makes the step due."""
    first = step()
    assert not first.done
    first.begin()
    (tmp_path / "result").write_text("made")
    first.finish()
    assert step().done

    (tmp_path / "input").write_text("version 2")
    assert not step().done
    (tmp_path / "input").write_text("version 1")
    assert step().done
    (tmp_path / "result").unlink()
    assert not step().done


def test_a_step_of_another_version_is_due_again(tmp_path: Path) -> None:
    """A program whose version is named by its address has no other input that changes."""

    def step(version: str) -> Step:
        return Step("example", [], tmp_path / "result", version=version, cache=tmp_path / "cache")

    step("v1").begin()
    (tmp_path / "result").write_text("made")
    step("v1").finish()
    assert step("v1").done
    assert not step("v2").done


def test_a_step_that_was_interrupted_is_due_again(step: Callable[[], Step], tmp_path: Path) -> None:
    """Half a result of a second attempt must not pass for the first one's."""
    (tmp_path / "result").write_text("made")
    first = step()
    first.begin()
    first.finish()
    second = step()
    second.begin()
    assert not step().done


def test_a_failing_command_names_its_log_and_its_reason(step: Callable[[], Step]) -> None:
    """One line: Maven's first error, not the advice it ends with."""
    failing = step()
    failing.begin()
    script = "print('[INFO] at work'); print('[ERROR] cannot resolve x:y:1'); print('[ERROR] see the manual'); exit(1)"
    with pytest.raises(SetupError) as error:
        failing.run([sys.executable, "-c", script])
    assert str(error.value) == f"example: failed, see {failing.log}; it says: [ERROR] cannot resolve x:y:1"
    with pytest.raises(SetupError, match="example: cannot run /nonexistent/mvn: No such file"):
        failing.run(["/nonexistent/mvn"])


def test_a_step_that_takes_too_long_says_that_a_rerun_goes_on(
    step: Callable[[], Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a compiler has cached stays."""
    monkeypatch.setattr(bootstrap, "STEP_TIMEOUT_SECONDS", 0.05)
    slow = step()
    slow.begin()
    with pytest.raises(
        SetupError, match=r"not done within 0\.05 s, see .*; run it again: it goes on from what is done"
    ):
        slow.run(["sleep", "5"])


def test_a_digest_sees_names_contents_and_new_files(tmp_path: Path) -> None:
    """A renamed, changed or added source file is a new build; an incomplete clone is an error."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "A.java").write_text("a")
    digests = {digest(tmp_path / "src")}
    (tmp_path / "src" / "B.java").write_text("")
    digests.add(digest(tmp_path / "src"))
    (tmp_path / "src" / "B.java").rename(tmp_path / "src" / "C.java")
    digests.add(digest(tmp_path / "src"))
    (tmp_path / "src" / "C.java").write_text("c")
    digests.add(digest(tmp_path / "src"))
    assert len(digests) == 4
    with pytest.raises(SetupError, match=r"pom\.xml is missing: this clone of the project is incomplete"):
        digest(tmp_path / "pom.xml")


def test_a_foreign_folder_is_never_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A WEIR_VENV that is another folder by mistake is refused, and the folder stays as it was."""
    (tmp_path / "thesis.tex").write_text("years of work")
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    step = Step("environment", [], tmp_path / "bin" / "weir", cache=tmp_path.parent / "cache")
    with pytest.raises(SetupError, match="is no virtual environment: remove it, or set WEIR_VENV"):
        bootstrap._make_environment(sys.executable, step)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_uv_installs_from_where_pip_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not read pip's settings, by which companies name their mirror; a variable of uv itself goes before."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example.org/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://a.example.org https://b.example.org")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")
    monkeypatch.setenv("PIP_CERT", "/etc/company.pem")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("UV_INDEX", "https://mine.example.org")
    found = bootstrap.uv_settings(sys.executable)
    assert found["UV_DEFAULT_INDEX"] == "https://mirror.example.org/simple"
    assert (found["UV_FIND_LINKS"], found["SSL_CERT_FILE"]) == ("/wheels,/more", "/etc/company.pem")
    assert "UV_INDEX" not in found
    monkeypatch.delenv("UV_INDEX")
    assert bootstrap.uv_settings(sys.executable)["UV_INDEX"] == "https://a.example.org https://b.example.org"


@pytest.mark.parametrize(("cache", "is_pruned"), [(None, True), ("/home/user/.cache/uv", False)])
def test_only_the_projects_own_cache_is_pruned(
    cache: str | None, is_pruned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own is for other projects, too."""
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "_version", lambda _: bootstrap.SUPPORTED[0])
    monkeypatch.setattr(bootstrap, "output_of", lambda _: "")
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    if cache:
        monkeypatch.setenv("UV_CACHE_DIR", cache)
    commands: list[list[str]] = []
    step = Step("environment", [], tmp_path / "bin" / "weir", cache=tmp_path)
    step.begin()
    monkeypatch.setattr(step, "run", lambda command, settings=None: commands.append(command))
    bootstrap._make_environment(sys.executable, step)
    first, *by_uv = commands
    assert first[1:3] == ["-m", "pip"] and "--require-hashes" in first
    assert [command[1] for command in by_uv] == ["pip", "pip", *(["cache"] if is_pruned else [])]
    assert all("--require-hashes" in command or "--no-deps" in command for command in by_uv[:2])


def test_uv_is_the_locked_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set-up fetches it with its hashes, before anything else."""
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "_version", lambda _: bootstrap.SUPPORTED[0])
    monkeypatch.setattr(bootstrap, "output_of", lambda _: "")
    commands: list[list[str]] = []
    step = Step("environment", [], tmp_path / "bin" / "weir", cache=tmp_path)
    step.begin()
    monkeypatch.setattr(step, "run", lambda command, settings=None: commands.append(command))
    bootstrap._make_environment(sys.executable, step)
    text = Path(commands[0][-1]).read_text()
    assert text.startswith("uv==") and text.count("--hash=sha256:") > 10 and text.count("==") == 1
    assert commands[1][0] == str(tmp_path / "bin" / "uv")


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "message"),
    [
        (["nonsense"], {}, 2, "usage: bootstrap.py [environment]"),
        ([], {"PATH": "/nonexistent"}, 1, "setup: Python 3.11 or 3.12 is needed"),
    ],
)
def test_set_up_that_cannot_begin_prints_one_line_and_writes_nothing(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], code: int, message: str
) -> None:
    """As `make setup` on a bare machine: an exit code, a line, and no traces."""
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-I", bootstrap.__file__, *arguments],
        env={"WEIR_CACHE": str(cache), "WEIR_VENV": str(tmp_path / "venv"), **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == code
    assert done.stderr.startswith(message) and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_memory_setting_that_is_no_number_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input at this border too."""
    monkeypatch.setenv("WEIR_MIN_MEMORY_MB", "4 GB")
    with pytest.raises(SetupError, match="WEIR_MIN_MEMORY_MB: '4 GB' is not a whole number"):
        bootstrap.min_memory_megabytes()


def test_any_old_python_can_read_the_script() -> None:
    """The system's python3 may be too old for Weir; it must still get as far as saying so."""
    ast.parse(Path(bootstrap.__file__).read_text(), feature_version=(3, 7))
