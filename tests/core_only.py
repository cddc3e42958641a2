"""What third-party code does with a core install; run with the interpreter that has it.

    python -I tests/core_only.py

The ten-line loop of PettingZoo's documentation runs on `voting_v0.env(task="math")`; neither the
import nor the loop loads a heavy or optional module; and flowzoo is imported in less than 0.3 s on
the machine of `MEASURED`. Exit status 1 and one line on stderr for what does not hold.

Seconds of the wall would tell how busy the machine is, and seconds of CPU time which one it is. So
the import is compared with that of three packages it cannot do without, in CPU time, the best of a
few fresh processes each.
"""

import subprocess
import sys

FORBIDDEN = ("torch", "vllm", "ray", "docker", "transformers")
LAZY = ("sympy", "numba", "asyncio", "flowzoo.reward.math")
NEEDED = "numpy, gymnasium, pettingzoo"
LIMIT = 0.3
"""Seconds."""
MEASURED = 0.15
"""Seconds that the import of what is needed takes where that of flowzoo may take `LIMIT`."""
ROUNDS = 60
"""Most processes of either kind; five each are enough where the machine is quiet."""

LOOP = """
from flowzoo import voting_v0

env = voting_v0.env(task="math")
env.reset(seed=42)

for agent in env.agent_iter():
    observation, reward, termination, truncation, info = env.last()
    if termination or truncation:
        action = None
    else:
        action = env.action_space(agent).sample()
    env.step(action)
env.close()
"""

TIMED = "from time import thread_time as now; start = now(); import {}; print(now() - start)"


def run(code: str) -> str:
    """Output of `code` in a fresh interpreter; its error ends this script."""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"this failed:\n{code}\n{done.stderr}")
    return done.stdout


def loaded(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of the modules `names` are loaded after `code` has run."""
    return run(f"{code}\nimport sys\nprint(*[n for n in {names!r} if n in sys.modules])").split()


def main() -> None:
    """Check and print the three figures."""
    needed = seconds = limit = float("inf")
    rounds = 0
    while rounds < 5 or (seconds >= limit and rounds < ROUNDS):
        needed = min(needed, float(run(TIMED.format(NEEDED))))
        seconds = min(seconds, float(run(TIMED.format("flowzoo"))))
        limit = LIMIT * needed / MEASURED
        rounds += 1
    print(f"import flowzoo: {seconds:.3f} s of CPU time (best of {rounds}, limit {limit:.3f} s)")
    at_import = loaded("import flowzoo", FORBIDDEN + LAZY)
    print(f"heavy modules after the import: {at_import or 'none'}")
    after_loop = loaded(LOOP, FORBIDDEN)
    print(f"forbidden modules after the AEC loop: {after_loop or 'none'}")
    if seconds >= limit or at_import or after_loop:
        sys.exit("core_only: a promise of the core install does not hold, see above")


if __name__ == "__main__":
    main()
