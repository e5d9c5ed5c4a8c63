"""Differences of Windows and macOS, tested on any system: missing names, open files, file names
that differ in case, line ends, console encodings, and processes without fork."""

from __future__ import annotations

import ast
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from histodict.batch import output_key
from histodict.datasets.manifest import ImageRecord
from histodict.models import Plan
from histodict.models.feature_extraction import extract_features, extraction_recipe
from histodict.utils import files
from histodict.utils import parallel as processes
from histodict.utils.files import atomic_write

PACKAGE = Path(__file__).parents[1] / "src" / "histodict"
# These run only where sockets can be handed to another process.
WHERE_LINES_ARE = {"images/slide_reader.py", "images/slide_worker.py"}
SOURCES = {
    name: path.read_text("utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
    if (name := path.relative_to(PACKAGE).as_posix()) not in WHERE_LINES_ARE
}

# Names of the standard library that Python on Windows lacks, some of them before 3.12.
POSIX_ONLY = {
    "os": {
        *("fork", "forkpty", "getuid", "geteuid", "getgid", "getpgid", "getpriority", "killpg"),
        *("mkfifo", "nice", "register_at_fork", "sched_getaffinity", "set_blocking", "setsid"),
        *("sysconf", "uname", "wait3", "wait4", "WIFSIGNALED", "WTERMSIG", "O_NOFOLLOW"),
    },
    "signal": {"SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "alarm", "setitimer", "pthread_sigmask"},
    "socket": {"AF_UNIX", "send_fds", "recv_fds", "MSG_WAITALL"},
    "select": {"poll", "epoll", "kqueue"},
    "time": {"tzset"},
}
POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
GUARDS = ("hasattr(", "getattr(", "sys.platform", "os.name", "suppress(", "except (", "except ")


def posix_only(source: str) -> list[str]:
    """Return missing names used in a function or module without a check that they exist."""
    tree = ast.parse(source)
    homes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [
        f"line {node.lineno}: {name}"
        for node in ast.walk(tree)
        if (name := _named(node)) and not _is_guarded(source, node, homes)
    ]


def _named(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module = node.value.id
        return f"{module}.{node.attr}" if node.attr in POSIX_ONLY.get(module, ()) else ""
    if isinstance(node, ast.Import):
        return ", ".join(alias.name for alias in node.names if alias.name in POSIX_MODULES)
    if isinstance(node, ast.ImportFrom):
        return node.module or "" if node.module in POSIX_MODULES else ""
    return ""


def _is_guarded(source: str, node: ast.AST, homes: list[ast.FunctionDef]) -> bool:
    inside = [home for home in homes if home.lineno <= node.lineno <= (home.end_lineno or 0)]
    home = max(inside, key=lambda home: home.lineno, default=None)
    lines = source.splitlines()
    own = lines[home.lineno - 1 : home.end_lineno] if home else lines[max(0, node.lineno - 4) :]
    before = own[: node.lineno - (home.lineno if home else max(0, node.lineno - 4)) + 1]
    return any(guard in line for line in before for guard in GUARDS)


def test_names_that_windows_lacks_are_not_used():
    found = {name: posix_only(text) for name, text in SOURCES.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_posix_only_detects_missing_names():
    assert posix_only("import os\ndef f():\n    os.killpg(1, 9)\n") == ["line 3: os.killpg"]
    assert posix_only("import fcntl\n") == ["line 1: fcntl"]
    guarded = "import os\ndef f():\n    if hasattr(os, 'killpg'):\n        os.killpg(1, 9)\n"
    assert posix_only(guarded) == []


def calls_without_encoding(source: str) -> list[str]:
    """Windows would use its own code page."""
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and _opens_text(node)
    ]


def _opens_text(call: ast.Call) -> bool:
    if any(word.arg == "encoding" for word in call.keywords):
        return False
    if isinstance(call.func, ast.Attribute) and call.func.attr == "read_text":
        return not call.args
    if isinstance(call.func, ast.Attribute) and call.func.attr == "write_text":
        return len(call.args) < 2
    is_open = isinstance(call.func, ast.Name) and call.func.id == "open"
    mode = call.args[1] if is_open and len(call.args) > 1 else None
    return is_open and not (isinstance(mode, ast.Constant) and "b" in str(mode.value))


def test_text_files_are_opened_as_utf8():
    found = {name: calls_without_encoding(text) for name, text in SOURCES.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_calls_without_encoding_are_detected():
    assert len(calls_without_encoding("open('a'); p.read_text(); p.write_text('x')")) == 3
    assert calls_without_encoding("open('a', 'rb'); p.read_text('utf-8')") == []


# --- files open in another process
# -----------------------------------------------------------------


@pytest.fixture
def open_elsewhere(monkeypatch):
    """Simulate a system that cannot replace a file that is open elsewhere."""

    def keep_open(times: int) -> list[float]:
        replace, waits, left = os.replace, [], [times]

        def refuse(source, target):
            if left[0]:
                left[0] -= 1
                raise PermissionError(13, "The process cannot access the file", str(target))
            replace(source, target)

        monkeypatch.setattr(files, "_IS_WINDOWS", True)
        monkeypatch.setattr(files.os, "replace", refuse)
        monkeypatch.setattr(files.time, "sleep", waits.append)
        return waits

    return keep_open


def test_replacing_an_open_file_is_retried(tmp_path, open_elsewhere):
    path = tmp_path / "table.csv"
    path.write_text("old")
    waits = open_elsewhere(3)
    with atomic_write(path) as partial:
        partial.write_text("new")
    assert path.read_text() == "new" and len(waits) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_file_that_stays_open_remains_and_is_named(tmp_path, open_elsewhere):
    path = tmp_path / "table.csv"
    path.write_text("old")
    waits = open_elsewhere(100)
    with pytest.raises(PermissionError) as caught, atomic_write(path) as partial:
        partial.write_text("new")
    assert caught.value.filename == str(path) and sum(waits) < 2
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


# --- names --------------------------------------------------------------------------------------

RESERVED = {"con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in "123")}


def test_result_file_names_are_valid_on_every_system(tmp_path):
    names = ["slide.svs", "Slide.svs", "SLIDE.tif", "aux.png", "con.jpg", "COM1.tif", "a.b.svs"]
    keys = [output_key(tmp_path / name) for name in names]
    assert len({key.casefold() for key in keys}) == len(names)
    assert not {key.casefold().partition(".")[0] for key in keys} & RESERVED


def test_feature_files_that_differ_in_case_are_refused(tmp_path):
    """On Windows and macOS one would overwrite the other."""
    for name in ("slide.png", "Slide.png"):
        Image.new("RGB", (64, 64), (200, 120, 160)).save(tmp_path / name)
    images = [ImageRecord(tmp_path / name, "", name) for name in ("slide.png", "Slide.png")]
    with pytest.raises(ValueError, match=r"lide\.h5"):
        extract_features(extraction_recipe("centred", {}), images, tmp_path / "features")


# --- texts --------------------------------------------------------------------------------------


def test_recipe_saved_by_notepad_is_read(tmp_path):
    text = '{\n "method": "odl",\n "patch_px": 16\n}\n'
    plans = []
    for name, content in (("unix", text), ("windows", text.replace("\n", "\r\n"))):
        path = tmp_path / f"{name}.json"
        path.write_bytes(content.encode())
        plans.append(Plan.named(str(path)))
    assert plans[0] == plans[1] and plans[0].recipe.patch_px == 16


def test_characters_outside_the_console_encoding_are_escaped(tmp_path):
    """A pipe on Windows has a code page, and raises for characters that are not in it."""
    for name in ("腺腫", "θ"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (32, 32), (200, 120, 160)).save(tmp_path / name / "a.png")
    line = (
        "import typer; from histodict.cli.console import reset_state; reset_state(); "
        "typer.echo('腺腫 θ é')"
    )
    environment = os.environ | {"PYTHONIOENCODING": "cp1252:strict"}
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, env=environment, check=True
    )
    assert done.stdout.decode("cp1252").strip() == r"\u817a\u816b \u03b8 é"


# --- processes ----------------------------------------------------------------------------------


def test_processes_need_no_fork(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert processes.can_share_locks()
