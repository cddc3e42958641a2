"""A workflow of your own: two debaters answer, answer again, and a judge settles it."""

from typing import ClassVar

from flowzoo.envs import Ask, Grade, Outcome, Workflow, make_env
from flowzoo.envs.tasks import make_task
from flowzoo.envs.testing import check_workflow
from flowzoo.envs.text import visible


class Debate(Workflow):
    """Two debaters, one rebuttal each, one judge."""

    name = "debate_v0"
    roles: ClassVar = {"debater": 2, "judge": 1}

    def play(self, problem):
        """A list of asks is a phase: its agents do not see each other's replies."""
        question, read = self.task.prompt(problem), self.task.answer
        first = yield [Ask(f"debater_{i}", question, read) for i in (0, 1)]
        other = [f"{question}\n\nYour opponent says:\n{visible(reply.text)}" for reply in first]
        second = yield [Ask(f"debater_{i}", other[1 - i], read) for i in (0, 1)]
        said = "\n\n".join(f"Debater {i}:\n{visible(reply.text)}" for i, reply in enumerate(second))
        verdict = yield Ask("judge_0", f"{question}\n\n{said}\n\nWho is right?", read)
        replies = [*first, *second, verdict]
        *_, final = yield [Grade(reply.strict, of=reply) for reply in replies]
        return Outcome(answer=verdict.strict, score=final.score)


if __name__ == "__main__":
    debate = Debate(task=make_task("math"))
    check_workflow(debate)
    env = make_env(debate, render_mode="human")
    env.reset(seed=0)
    for agent in env.agent_iter():
        _, _, terminated, truncated, _ = env.last()
        env.step(None if terminated or truncated else env.action_space(agent).sample())
