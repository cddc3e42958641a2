"""Write docs/episode.svg, from a recorded episode: see `pages/film.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from pages.film import write

if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
