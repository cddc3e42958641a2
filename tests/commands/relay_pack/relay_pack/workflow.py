"""A workflow of somebody's own: one runner answers, the next one may correct it."""

from typing import ClassVar

from flowzoo.envs import Ask, Grade, Outcome, Workflow
from flowzoo.envs.text import visible


class Relay(Workflow):
    """A starter answers, a finisher has the last word."""

    name = "relay_v0"
    roles: ClassVar = {"starter": 1, "finisher": 1}
    default_task = "reversal"

    def play(self, problem):
        """Two asks, one after the other."""
        question, read = self.task.prompt(problem), self.task.answer
        first = yield Ask("starter_0", question, read)
        output = f"{question}\n\nA first answer:\n{visible(first.text)}"
        last = yield Ask("finisher_0", output, read)
        *_, final = yield [Grade(reply.strict, of=reply) for reply in (first, last)]
        return Outcome(answer=last.strict, score=final.score)
