"""Commands that are printed for the user to type can be typed."""

from __future__ import annotations

import os

from flowzoo.commands.shared import program_name


def test_the_name_is_enough_where_it_is_this_program(tmp_path, monkeypatch):
    script = tmp_path / "my env" / "bin" / "flowzoo"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(script)])
    monkeypatch.setenv("PATH", os.defpath)
    assert program_name() == f"'{script}'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert program_name() == "flowzoo"
    monkeypatch.setattr("sys.argv", ["/somewhere/flowzoo/cli.py"])
    assert program_name() == "flowzoo"
