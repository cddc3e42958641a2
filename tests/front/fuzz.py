"""Requests that schemathesis makes of the description of a front:

    python tests/front/fuzz.py [--requests 10000] [--kind serve door]

It prints how many got which status; none may get a status of the server's fault.
"""

import argparse
import http.client
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from front.fronts import FrontProcess, front_process

CHECKS = "not_a_server_error,response_schema_conformance,content_type_conformance"


def fuzz(
    front: FrontProcess, examples: int, seed: int = 0, phases: str = "fuzzing"
) -> subprocess.CompletedProcess[str]:
    """Send about so many requests to every address, right ones and wrong ones."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", "--phases", phases]
    command += ["--checks", CHECKS, "--max-examples", str(examples), "--seed", str(seed)]
    command += ["--header", f"Authorization: Bearer {front.key or 'any'}", "--warnings", "off"]
    command += ["--continue-on-failure", "--no-color", "--request-timeout", "20"]
    command += ["--generation-database", "none", f"http://127.0.0.1:{front.port}/openapi.json"]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def statuses(front: FrontProcess) -> dict[int, int]:
    """Numbers of requests by status, from the front's metrics."""
    asker = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    asker.request("GET", "/metrics", headers={"Authorization": f"Bearer {front.key}"})
    text = asker.getresponse().read().decode()
    asker.close()
    rows = re.findall(r'requests_total\{status="(\d+)"\} (\d+)', text)
    return {int(status): int(count) for status, count in rows}


def main() -> int:
    """Fuzz, and print the statuses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--kind", nargs="+", default=["serve", "door"])
    given, failed = parser.parse_args(), 0
    for kind in given.kind:
        with (
            tempfile.TemporaryDirectory() as folder,
            front_process(kind, Path(folder), {}) as front,
        ):
            seed, counts = 0, {200: 0}
            while sum(counts.values()) < given.requests:
                done = fuzz(front, 200, seed, "fuzzing" if seed else "coverage,fuzzing")
                seed, counts = seed + 1, statuses(front)
                if done.returncode:
                    print(done.stdout)
                    failed = 1
                    break
            print(kind, sum(counts.values()), "requests:", dict(sorted(counts.items())), flush=True)
            failed |= any(status >= 500 for status in counts)
    return failed


if __name__ == "__main__":
    sys.exit(main())
