import asyncio
import io
import stat
import sys

import pytest

from flowzoo.agents.human import CUT, HumanPolicy, editor
from flowzoo.agents.policy import Policy, Request
from flowzoo.agents.specs import make_policy
from flowzoo.cli import main
from flowzoo.errors import UsageError

REQUEST = Request(("k",), "judge_0", "judge", [{"role": "user", "content": "is \x1b[31m it π?"}])


def replies(monkeypatch, typed: str, count: int = 1) -> list[str]:
    """Replies to `count` requests when this is typed."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    policy = make_policy("human")
    assert isinstance(policy, HumanPolicy)
    assert isinstance(policy, Policy)
    return [done.text for done in asyncio.run(policy.generate([REQUEST] * count))]


def script(tmp_path, code: str) -> str:
    """An editor that runs `code` over `sys.argv[1]`."""
    path = tmp_path / "an editor.py"
    path.write_text(f"#!{sys.executable}\nimport sys, pathlib\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"'{path}'"


def test_a_line_or_several_are_the_reply_as_typed(monkeypatch, capsys):
    typed = '\\boxed{1}\n\n"""\nfirst\n\n  second\n"""\n'
    assert replies(monkeypatch, typed, 3) == ["\\boxed{1}", "", "first\n\n  second"]
    requested = capsys.readouterr()
    assert requested.out == ""  # which is for the transcript
    assert requested.err.count("you are judge_0") == 3
    assert "is \\u001b[31m it π?" in requested.err
    assert requested.err.count("/edit") == 1


@pytest.mark.parametrize("typed", ["", '"""\nunfinished\n'])
def test_the_end_of_standard_input_is_one_line(monkeypatch, typed):
    with pytest.raises(UsageError, match="standard input ended while judge_0"):
        replies(monkeypatch, typed)


def test_an_editor_shows_the_question_and_gives_what_stands_above_it(monkeypatch, tmp_path):
    code = (
        "p = pathlib.Path(sys.argv[1]); t = p.read_text(); seen = p.with_suffix('.seen')\n"
        f"pathlib.Path({str(tmp_path / 'asked')!r}).write_text(t)\n"
        "p.write_text('def f():\\n    return 1\\n' + t)"
    )
    monkeypatch.setenv("VISUAL", script(tmp_path, code))
    assert replies(monkeypatch, "/edit\n") == ["def f():\n    return 1"]
    requested = (tmp_path / "asked").read_text()
    assert requested.startswith(f"\n{CUT}\nuser:\nis ")


def test_an_empty_text_is_asked_for_again(monkeypatch, tmp_path):
    monkeypatch.setenv("VISUAL", script(tmp_path, ""))
    assert replies(monkeypatch, "/edit\ntyped after all\n") == ["typed after all"]


def test_what_is_wrong_with_an_editor_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("VISUAL", script(tmp_path, "sys.exit(3)"))
    with pytest.raises(UsageError, match="status 3"):
        replies(monkeypatch, "/edit\n")
    monkeypatch.setenv("VISUAL", "/nowhere/editor")
    with pytest.raises(UsageError, match="cannot start"):
        replies(monkeypatch, "/edit\n")
    monkeypatch.setenv("VISUAL", "vi '")
    with pytest.raises(UsageError, match="cannot read the editor's command \"vi '\": No closing"):
        editor()
    monkeypatch.delenv("VISUAL")
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="set EDITOR"):
        editor()


def test_a_person_plays_a_role_and_sees_no_more_than_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\\boxed{2}\n"))
    args = ["--policy", "generator=scripted:1", "aggregator=human"]
    assert main(["play", "voting", *args]) == 0
    output = capsys.readouterr()
    assert "Candidate 3" in output.err
    assert "gold" not in output.err
    assert "Candidate" not in output.out
    rewards = "generator_0 1, generator_1 1, generator_2 1, aggregator_0 1"
    assert output.out.endswith(f"rewards: {rewards}\n")


def test_a_person_who_leaves_ends_the_command_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one reply\n"))
    assert main(["play", "voting", "--policy", "human"]) == 2
    assert "Traceback" not in capsys.readouterr().err
