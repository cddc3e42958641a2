"""`flowzoo eval` with endpoints of a file: their names, and one that is slow, limits and dies."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from endpoint import chat, serving

from flowzoo.cli import main
from flowzoo.files import read_json

PATIENCE = 600.0
PRICES = "m = { input = 2.5, output = 10 }"


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.toml").write_text(PRICES)
    with serving() as endpoint:
        endpoint.answer = lambda body, count: chat("\\boxed{1}")
        yield endpoint


def write_endpoints(server, **fields):
    lines = [f'url = "{server.url}"', *(f"{name} = {value}" for name, value in fields.items())]
    Path("endpoints.toml").write_text("\n".join(["[fake]", *lines]))


LINE = ["eval", "voting", "--policy", "openai:m@fake", "--endpoints", "endpoints.toml",
        "--out", "out", "--prices", "prices.toml"]  # fmt: skip


def test_an_endpoint_has_a_name_and_what_it_adds_to_requests_is_recorded(server, capsys):
    write_endpoints(server, extra_body='{ effort = "low" }', concurrency=4)
    assert main([*LINE, "--n", "3"]) == 0
    assert {body["effort"] for body in server.seen} == {"low"}
    settings = read_json(Path("out/run.json"))["settings"]
    assert settings["endpoints"]["fake"]["extra_body"] == {"effort": "low"}
    write_endpoints(server, extra_body='{ effort = "low" }', concurrency=2)
    assert main([*LINE, "--n", "4"]) == 0
    assert len(server.seen) == 16
    write_endpoints(server, extra_body='{ effort = "high" }')
    assert main([*LINE, "--n", "4"]) == 2
    assert "with other settings (endpoints)" in " ".join(capsys.readouterr().err.split())
    assert main([word.replace("@fake", "@fkae") for word in LINE]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "unknown endpoint 'fkae'. Did you mean 'fake'" in error


class Fickle:
    """Answers that are slow and counted; one in seven is refused, and the server dies twice."""

    def __init__(self, server, total):
        self.server, self.deaths = server, [total // 4, total * 3 // 4]
        self.lock = threading.Lock()
        self.usage = {}
        self.answers = self.refusals = 0

    def __call__(self, body, count):
        if count % 7 == 0:
            with self.lock:
                self.refusals += 1
            return 429, {"retry-after-ms": "20"}, "slow down"
        time.sleep(0.002)
        content = json.dumps([body["seed"], body["messages"]])
        number = hashlib.sha256(content.encode()).digest()[0]
        status, headers, answer = chat(f"\\boxed{{{number % 3}}}")
        answer["usage"] = {"prompt_tokens": 100 + number, "completion_tokens": 1 + number % 7}
        with self.lock:
            self.answers += 1
            self.usage[content] = answer["usage"]
            if self.deaths and self.answers >= self.deaths[0]:
                del self.deaths[0]
                threading.Thread(target=self.die, daemon=True).start()
        return status, headers, answer

    def die(self):
        self.server.die()
        time.sleep(1)
        self.server.come_back()


def killed_halfway(line, server, total):
    """Run a command in another process, and kill it once it has asked half of its requests."""
    command = [sys.executable, "-m", "flowzoo.cli", *line]
    with open("log.txt", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    end = time.monotonic() + PATIENCE
    while len(server.usage) < total // 2:
        assert process.poll() is None, Path("log.txt").read_text()
        assert time.monotonic() < end, "it did not get so far"
        time.sleep(0.01)
    process.kill()
    process.wait()


@pytest.mark.parametrize(("n", "samples"), [(25, 1), pytest.param(200, 2, marks=pytest.mark.full)])
def test_an_endpoint_that_is_slow_limits_and_dies_loses_nothing(n, samples, server, capsys):
    total = 4 * n * samples
    server.answer = fickle = Fickle(server, total)
    write_endpoints(server, concurrency=8)
    line = [*LINE, "--n", str(n), "--samples", str(samples)]
    killed_halfway(line, fickle, total)
    assert main(line) == 0
    assert f"/{n * samples}), 95 % interval" in capsys.readouterr().out.splitlines()[-1]
    usage = read_json(Path("out/summary.json"))["usage"]
    prompt, output = (
        sum(counts[name] for counts in fickle.usage.values())
        for name in ("prompt_tokens", "completion_tokens")
    )
    assert (usage["calls"], len(fickle.usage), fickle.deaths) == (total, total, [])
    assert (usage["prompt_tokens"], usage["output_tokens"]) == (prompt, output)
    assert usage["cost"] == pytest.approx((2.5 * prompt + 10 * output) / 1e6, rel=1e-12)
    # What was under way when the process was killed was answered twice, and nothing else.
    assert fickle.answers <= total + 8
    assert fickle.refusals > 0
    assert not os.path.exists("out/answers.sqlite")
