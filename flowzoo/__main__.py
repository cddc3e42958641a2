"""`python -m flowzoo`: the command `flowzoo`."""

import sys

from flowzoo.cli import main

sys.exit(main())
