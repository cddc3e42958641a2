"""Signals of a driver that has joined a cluster."""

import pytest
from processes import run_python

pytest.importorskip("ray", reason="needs flowzoo[scale]")

DRIVER = """
import signal
from flowzoo.baselines.backends.ray.cluster import LOCAL, connect
from flowzoo.commands.progress.stopping import STOP
with STOP:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    connect(LOCAL, {"CPU": 1, "GPU": 0})
    print(before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
"""


def test_a_driver_keeps_the_handlers_that_say_how_a_run_goes_on():
    assert run_python(DRIVER).splitlines()[-1] == "True"
