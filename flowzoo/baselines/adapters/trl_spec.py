"""One agent of a workflow in TRL's `GRPOTrainer`, as its `environment_factory`.

    spec = TRLSpec("voting", "aggregator_0", others="vllm:MODEL@http://localhost:8000/v1")
    trainer = GRPOTrainer(model, args=..., train_dataset=spec.train_dataset,
                          environment_factory=spec.environment_factory,
                          reward_funcs=spec.reward_funcs)

TRL samples and trains that agent; the policies of `others`, which stay as they are, play the rest.
The reward is what the workflow pays the agent over the episode, the same that a rollout of ours
gives for the same problem, seed and replies (the check of docs/libraries.md compares them).

`turns="one"` is for an agent that is asked once an episode: its prompt ends TRL's last user message
and the whole completion is its reply. With `turns="many"` the model answers by calling the tool
`reply`, which returns what it is asked next; a message without a call is a reply, too, and turns
that it leaves open are answered with nothing. TRL appends to one conversation: of a chat that goes
on, the new message is handed on; prompts that stand alone here stand in one conversation there.

Every member of a group plays the same problem with the same replies of others (they depend on seed,
problem, `sample` and what the agent said), so that a group compares replies and not luck.
Nothing of TRL is imported here; it requires a chat template that can render tool calls.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

from flowzoo.agents.policy import Completion
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob
from flowzoo.agents.vllm.loop_thread import LoopThread
from flowzoo.baselines.adapters.outside import Others, OutsidePlay, one_agent, policies_of
from flowzoo.envs import EpisodeRecord, Message, make_workflow
from flowzoo.envs.tasks.guarded import get_problem
from flowzoo.errors import UsageError, check_choice, missing_extra
from flowzoo.reward.visible import strip_thinking

Turns = Literal["one", "many"]
OVER = "The episode is over."


def _visible(message: Message) -> tuple[str, str]:
    """Role and content without thoughts, which later prompts may leave out."""
    return message["role"], strip_thinking(message["content"])


class WorkflowSeat:
    """An agent's seat as TRL drives it: `reset` with a row of the data set, then replies."""

    def __init__(self, play: OutsidePlay, spec: TRLSpec) -> None:
        """Hold the seat."""
        self._play, self._spec = play, spec
        self._chat: list[Message] = []

    def reset(self, index: int, sample: int = 0, **row: Any) -> str:
        """Begin the episode of a row; returns what the agent is shown.

        Raises:
            UsageError: the episode ends without asking the agent.
        """
        problem = get_problem(self._spec.workflow.task, index, self._spec.split)
        request = self._play.start(EpisodeJob(problem, sample))
        if request is None:
            raise UsageError(
                f"{self._play.agent} is not asked on problem {problem.id}: train an agent that is "
                "asked in every episode."
            )
        self._chat = []
        return self._new_text(request.messages)

    def _new_text(self, messages: Sequence[Message]) -> str:
        """What a chat adds to the conversation so far: one message of the user.

        Raises:
            UsageError: it is another chat, which an environment of TRL cannot hand on.
        """
        shown, known = [*map(_visible, messages)], [*map(_visible, self._chat)]
        new = messages[len(known) :] if shown[: len(known)] == known else messages
        if [message["role"] for message in new] != ["user"]:
            shape = ", ".join(message["role"] for message in new)
            raise UsageError(
                f"{self._play.agent} was shown a chat ({shape}): TRL's environments add one "
                "message of the user at a time. Train with `flowzoo train` or `TRLRolloutWorker`."
            )
        self._chat = list(messages)
        return new[0]["content"]

    def _answer(self, text: str) -> str | None:
        """Answer; what the agent is asked next."""
        request = self._play.answer(Completion(text))
        self._chat.append({"role": "assistant", "content": text})
        return None if request is None else self._new_text(request.messages)

    def _finish(self, text: str | None) -> EpisodeRecord:
        """The finished episode, after a last reply (None: there is none)."""
        play = self._play
        if text is not None and play.request is not None:
            play.answer(Completion(text))
        if play.request is not None and self._spec.turns == "one":
            raise UsageError(f'{play.agent} is asked again in an episode: use turns="many".')
        while play.request is not None:
            play.answer(Completion(""))
        assert play.record is not None
        return play.record


class WorkflowToolSeat(WorkflowSeat):
    """The same where the model answers by a tool call."""

    def reply(self, text: str) -> str:
        """Give your reply to what you were asked, and read what you are asked next.

        Args:
            text: Your whole reply.

        Returns:
            What you are asked next, or that the episode is over.
        """
        if self._play.request is None:
            return OVER
        return self._answer(text) or OVER


class TRLSpec:
    """What `GRPOTrainer` wants to know of one agent in a workflow; see the module's docstring."""

    def __init__(
        self,
        workflow: Any,
        role: str,
        *,
        others: Others = "scripted:1",
        turns: Turns = "one",
        task: Any = None,
        split: str = "train",
        problems: int = 256,
        samples: int = 1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """Describe the seat; nothing is loaded before it is needed.

        Args:
            workflow: name of a workflow, `module:Class`, a Workflow subclass or instance.
            role: the agent that TRL trains, or a role that has one agent.
            others: who plays the others, the agent's siblings in its role too; by default the
                workflow's scripted expert.
            turns: `one` if the agent is asked once an episode, else `many`.
            task: name of a task, or a Task; by default the workflow's own.
            split: of the problems.
            problems: number of distinct problems in the data set.
            samples: rows for each problem, each with other replies of the others.
            seed: of the others.
            options: of the workflow and its task.

        Raises:
            UsageError: a name, a number or an option that there is not.
        """
        check_choice("turns", turns, Turns)
        for name, count in (("problems", problems), ("samples", samples)):
            if count < 1:
                raise UsageError(f"`{name}` must be at least 1, got {count}.")
        self.workflow = make_workflow(workflow, task, **options)
        self.agent = one_agent(self.workflow, role)
        self.turns, self.split, self.seed = turns, split, seed
        self._others, self._problems, self._samples = others, problems, samples

    def __getstate__(self) -> dict[str, Any]:
        """Without what was made so far, so that the factory reaches another process."""
        made = ("_loop", "_policies", "train_dataset")
        return {name: value for name, value in vars(self).items() if name not in made}

    @cached_property
    def _loop(self) -> LoopThread:
        loop = LoopThread("flowzoo-trl")
        atexit.register(loop.close)  # a seat that is left in the middle of an episode still waits
        return loop

    @cached_property
    def _policies(self) -> dict[str, Any]:
        return policies_of(self.workflow, self._others, self.agent, self.seed)

    @cached_property
    def train_dataset(self) -> Any:
        """A `datasets.Dataset`; the environment completes the empty prompts.

        Raises:
            MissingExtraError: `datasets` is not installed.
        """
        try:
            from datasets import Dataset
        except ImportError as error:
            raise missing_extra("datasets", "data", "the data set of a TRLSpec") from error
        found = distinct_problems(self.workflow.task, self.split, self._problems)
        rows = [
            {
                "prompt": [{"role": "user", "content": ""}],
                "problem": problem.id,
                "index": problem.index,
                "sample": sample,
            }
            for problem in found
            for sample in range(self._samples)
        ]
        return Dataset.from_list(rows)

    @property
    def environment_factory(self) -> Callable[[], WorkflowSeat]:
        """Makes a seat; TRL keeps as many as it has episodes under way."""
        return self.make

    @property
    def reward_funcs(self) -> list[Callable[..., list[float]]]:
        """What the workflow pays the agent."""
        return [workflow_reward]

    def make(self) -> WorkflowSeat:
        """A seat of its own."""
        play = OutsidePlay(self.workflow, self.agent, self._policies, self._loop, self.seed)
        return WorkflowSeat(play, self) if self.turns == "one" else WorkflowToolSeat(play, self)


def workflow_reward(
    environments: Sequence[WorkflowSeat], completions: Sequence[Any], **columns: Any
) -> list[float]:
    """What the workflow pays each seat for its episode, which is played to its end.

    Logs the mean score of the episodes as `workflow_score`.
    """
    records = [
        environment._finish(last_reply(completion))
        for environment, completion in zip(environments, completions, strict=True)
    ]
    log = columns.get("log_metric")
    if log is not None:
        log("workflow_score", sum(record.score for record in records) / len(records))
    return [
        record.returns[environment._play.agent]
        for record, environment in zip(records, environments, strict=True)
    ]


def last_reply(completion: Any) -> str | None:
    """What a completion ends with; None where that is a tool call, or what a tool returned."""
    last = completion if isinstance(completion, str) else completion[-1]
    if isinstance(last, str):
        return last
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    return last.get("content") or ""
