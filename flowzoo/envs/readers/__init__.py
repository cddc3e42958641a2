"""Strict readers of plain-language replies: choices, verdicts, plans, test cases.

They read only unambiguous statements. Hedged, denied or contradicted statements and questions are
unreadable: a guess would reward an answer that was not given.
"""

from flowzoo.envs.readers.cases import read_tests
from flowzoo.envs.readers.choices import read_choice
from flowzoo.envs.readers.plans import read_plan
from flowzoo.envs.readers.verdicts import read_verdict

__all__ = ["read_choice", "read_plan", "read_tests", "read_verdict"]
