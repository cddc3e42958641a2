"""Sends the events of a run to a command of the user's."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Mapping
from typing import Any

from flowzoo.baselines.settings.hooks import alert_words

WAIT_S = 30.0
"""Seconds that a command may take; it is ended then."""

logger = logging.getLogger("flowzoo")


def send_alert(command: str, event: Mapping[str, Any]) -> None:
    """Run a command with an event as JSON on its standard input; failures are logged."""
    try:
        done = subprocess.run(
            alert_words(command), input=json.dumps(event), text=True, timeout=WAIT_S, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("the command of --alert failed: %s", error)
        return
    if done.returncode:
        message = " ".join(done.stderr.split())[-200:]
        logger.warning("the command of --alert ended with status %d: %s", done.returncode, message)
