"""The command line, without the demo's training (tests/cli/test_demo.py)."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from ipu_keras.cli import main as cli
from ipu_keras.target import TARGETS


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_help_is_quick_and_imports_no_tensorflow():
    python("-m", "ipu_keras", "--help")  # compiles the byte code
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = python("-m", "ipu_keras", "--help")
        seconds.append(time.perf_counter() - start)
        assert done.returncode == 0 and "demo" in done.stdout and "targets" in done.stdout
    assert min(seconds) < 1.0
    script = (
        "import sys; from ipu_keras.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules), 'imported'"
    )
    done = python("-c", script)
    assert done.returncode == 0, done.stderr


def test_no_command_prints_help_and_is_wrong_usage(capsys):
    assert cli.main([]) == cli.USAGE
    assert "usage: ipu-keras" in capsys.readouterr().out


def test_unknown_command_and_option_are_wrong_usage():
    for arguments in (["fly"], ["demo", "--fly"]):
        with pytest.raises(SystemExit) as exit_code:
            cli.main(arguments)
        assert exit_code.value.code == cli.USAGE


def test_version(capsys):
    from ipu_keras import __version__

    with pytest.raises(SystemExit) as exit_code:
        cli.main(["--version"])
    assert exit_code.value.code == 0
    assert capsys.readouterr().out.strip() == f"ipu-keras {__version__}"


def test_targets(capsys):
    assert cli.main(["targets"]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(TARGETS)
    assert cli.main(["targets", "--json"]) == cli.OK
    listed = json.loads(capsys.readouterr().out)
    assert [target["name"] for target in listed] == list(TARGETS)
    assert all(target["tiles"] > 0 and target["bytes_per_tile"] > 0 for target in listed)


def test_errors_of_the_project_are_messages_and_an_exit_code(monkeypatch, capsys):
    from ipu_keras.cli import targets
    from ipu_keras.errors import UnknownTargetError

    def fail(**_):
        raise UnknownTargetError("no target is called 'gc20'")

    monkeypatch.setattr(targets, "targets", fail)
    assert cli.main(["targets"]) == cli.FAILED
    captured = capsys.readouterr()
    assert captured.err == "ipu-keras: no target is called 'gc20'\n" and not captured.out


def test_missing_package_is_a_message_and_a_bug_is_not(monkeypatch, capsys):
    from ipu_keras.cli import targets

    def missing(name):
        def fail(**_):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        return fail

    monkeypatch.setattr(targets, "targets", missing("tensorflow"))
    assert cli.main(["targets"]) == cli.FAILED
    assert "needs tensorflow" in capsys.readouterr().err
    monkeypatch.setattr(targets, "targets", missing("ipu_keras.typo"))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["targets"])


def test_interrupt(monkeypatch, capsys):
    from ipu_keras.cli import targets

    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(targets, "targets", interrupted)
    assert cli.main(["targets"]) == cli.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err
