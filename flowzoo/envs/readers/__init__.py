"""Strict readers of what roles say in plain words: a choice, a verdict, a plan, test cases.

They read what a person would read without doubt. What is hedged, denied, contradicted or asked
stays unreadable, since every guess would be a way to be paid for an answer that was not given.
"""

from flowzoo.envs.readers.cases import read_tests
from flowzoo.envs.readers.choices import read_choice
from flowzoo.envs.readers.plans import read_plan
from flowzoo.envs.readers.verdicts import read_verdict

__all__ = ["read_choice", "read_plan", "read_tests", "read_verdict"]
