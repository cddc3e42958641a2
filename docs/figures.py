"""Write measured figures from `docs/data` into the documentation: see `pages/figures.py`."""

from __future__ import annotations

import sys

from pages.figures import problems

if __name__ == "__main__":
    differences = problems(write="--check" not in sys.argv)
    sys.stdout.write("".join(f"{line}\n" for line in differences))
    sys.exit(bool(differences))
