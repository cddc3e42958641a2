"""Processes that commands start, and what they see of other commands."""

import secrets
import sys
import time

import pytest
from agent_programs import play_together
from processes import commands_with, wait_for

from flowzoo.envs.external.program import OpenAIProgram

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
HOLD = "import os, sys, time; print(7, flush=True); os.fork() or (os.setsid(), time.sleep(600))"
LATE = "import os, sys, time; os.fork() or (os.setsid(), time.sleep(600)); time.sleep(600)"
KEYS = """
import glob, os, time
def keys():
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            words = open(path, "rb").read().split(b"\\0")
        except OSError:
            continue
        yield from (word for word in words if word.startswith(b"OPENAI_API_KEY=flowzoo-"))
end, found = time.monotonic() + 4, set()
while time.monotonic() < end:
    found |= {*keys()}
print(len(found))
"""


def command(source: str, *words: str) -> OpenAIProgram:
    return OpenAIProgram((sys.executable, "-S", "-c", source, *words), roles="writer", seconds=20)


def test_an_answer_counts_although_a_daemon_holds_the_output():
    token, start = secrets.token_hex(8), time.monotonic()
    (episode,) = play_together(command(HOLD, token))
    record = episode.finished()
    assert (record.answer, record.facts["ended"]) == ("7", "answer")
    assert time.monotonic() - start < 15
    assert not commands_with(token)


def test_a_daemon_ends_with_its_episode():
    token = secrets.token_hex(8)
    workflow = OpenAIProgram((sys.executable, "-S", "-c", LATE, token), roles="writer", seconds=1.0)
    (episode,) = play_together(workflow)
    assert episode.finished().facts["ended"] == "timeout"
    wait_for(lambda: not commands_with(token))


def test_a_command_does_not_see_the_keys_of_others():
    workflow = command(KEYS)
    if play_together(command("import os; print(os.getpid())"))[0].finished().answer != "2":
        pytest.skip("this machine allows no namespaces")
    assert [episode.finished().answer for episode in play_together(workflow, workflow)] == ["1"] * 2
