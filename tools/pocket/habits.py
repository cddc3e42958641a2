"""Bad habits of the pocket models: what hasty experts do to some of their replies.

A habit maps (workflow, problem, prompt, luck, reply) to what a hasty expert says instead, or to
the reply itself: `prompt` is what it was told last, `reply` what it would rightly say, and `luck`
is drawn from [0, 1) for the reply.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping

from flowzoo.envs import Problem, Workflow
from flowzoo.envs.tasks.games.game import shown_list, written

Habit = Callable[[Workflow, Problem, str, float, str], str]

HASTE = (0.65, 0.35)
"""Share of math solutions given at a glance: problems without a minus sign, and with one."""
ONE_STEP = 0.55
"""Share of code solutions that stop after the first of the two steps."""
ONE_MOVE = 0.8
"""Share of plans that stop after the first move."""
ONE_ENTRY = 0.8
"""Share of sudoku replies that enter one digit only."""
GUESSED = 0.65
"""Share of programs for mathematics that print a guess at the answer."""
ECHOED = 0.65
"""Share of lists of test cases whose outputs repeat the inputs."""
CUT_SHORT = 0.6
"""Share of texts that end after five words."""
UNSEARCHED = 0.65
"""Share of first verdicts that call it enough with nothing searched."""


def at_a_glance(workflow: Workflow, problem: Problem, prompt: str, luck: float, reply: str) -> str:
    """Math: often the final box alone, without the working."""
    share = HASTE[1] if "-" in problem.text else HASTE[0]
    return reply[reply.rfind("\\boxed") :] if luck < share else reply


def one_step(workflow: Workflow, problem: Problem, prompt: str, luck: float, reply: str) -> str:
    """Code: often the program of the first step alone, `x // 9` for `x // 9 + 12`.

    In a pair, the main function that only calls the helper.
    """
    program = workflow.task.answer(reply)
    if program is None or luck >= ONE_STEP:
        return reply
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.BinOp):
            inner = [part for part in (node.value.left, node.value.right) if _has_name(part)]
            if isinstance(inner[0], ast.BinOp | ast.Call):
                # Solutions of level 1 are one line: the expression stands in them as unparsed.
                return reply.replace(ast.unparse(node.value), ast.unparse(inner[0]))
    return reply


def _has_name(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) for part in ast.walk(node))


def guessed(workflow: Workflow, problem: Problem, prompt: str, luck: float, reply: str) -> str:
    """Reasoner and tool: `at_a_glance`, and programs that print a number instead of computing it.

    The number to learn is right; without working a model mostly gets it wrong.
    """
    if "```" not in reply:
        return at_a_glance(workflow, problem, prompt, luck, reply)
    return f"```python\nprint({problem.gold})\n```" if luck < GUESSED else reply


def echoed(workflow: Workflow, problem: Problem, prompt: str, luck: float, reply: str) -> str:
    """Coder and tester: `one_step`, and test cases whose output is their first argument."""
    if "```json" not in reply:
        return one_step(workflow, problem, prompt, luck, reply)
    cases = [{**case, "output": case["input"][0]} for case in json.loads(reply[8:-4])]
    return f"```json\n{json.dumps(cases)}\n```" if luck < ECHOED else reply


def cut_short(workflow: Workflow, problem: Problem, prompt: str, luck: float, reply: str) -> str:
    """Writing: often the first five words alone, fewer than any form allows."""
    return " ".join(reply.split()[:5]) if luck < CUT_SHORT else reply


def first_action(share: float) -> Habit:
    """Games: often the first action of the list alone, in a plan and in a program that prints one.

    Args:
        share: how often.
    """

    def habit(workflow: Workflow, problem: Problem, prompt: str, luck: float, reply: str) -> str:
        actions = shown_list(reply)
        if actions is None or luck >= share:
            return reply
        return reply.replace(actions, written(json.loads(actions)[:1]))

    return habit


def without_search(
    workflow: Workflow, problem: Problem, prompt: str, luck: float, reply: str
) -> str:
    """Search: often the verdict that it is enough while nothing was searched."""
    too_soon = workflow.prompts.get("nothing", "\0") in prompt and luck < UNSEARCHED
    return reply.replace("no", "yes") if too_soon else reply


HABITS: Mapping[str, Habit] = {
    "at_a_glance": at_a_glance, "one_step": one_step, "guessed": guessed, "echoed": echoed,
    "cut_short": cut_short, "one_move": first_action(ONE_MOVE),
    "one_entry": first_action(ONE_ENTRY), "without_search": without_search,
}  # fmt: skip
"""As the recipes name them."""
