"""Two games with pay of every player's own: a throw of hands, and a common pot.

flowzoo train examples/games.py:Throws --model pocket:math --options credit=local
flowzoo eval examples/games.py:Throws --policy pocket:math --json
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from flowzoo.envs import Ask, Outcome, Payoffs, Workflow
from flowzoo.envs.text import boxed_number, lone_number

HANDS = ("rock", "paper", "scissors")
LOST = -2.0
"""Pay of a reply that is no hand, against one that is."""


def throw_pay(own: int | None, other: int | None) -> float:
    """Pay of a player for two hands, 1 to 3; None: unreadable."""
    if own is None or other is None:
        return LOST * ((own is None) - (other is None))
    return (0.0, 1.0, -1.0)[(own - other) % 3]


def exploitability(facts: Mapping[str, float]) -> float:
    """What two best replies to the means of `facts` earn together; 0 in equilibrium."""
    return sum(
        max(sum(facts[f"{other}_{hand}"] * throw_pay(own, number)
                for number, hand in enumerate(HANDS, 1)) for own in (1, 2, 3))
        for other in ("first", "second")
    )  # fmt: skip


@dataclass(frozen=True)
class Throws(Workflow):
    r"""Rock, paper, scissors: what one player earns, the other loses.

    A hand earns 1 against the hand that it beats and -1 against the other; a reply that is no hand
    earns -2 against one that is, and the pay of both is 0 in sum. So the score, which is the mean
    pay from -2 to 2 as a share, is 0.5 in every episode, and only the pay shows who learns.

    Facts: `first_rock`, `first_paper` … `second_scissors`, the hand that each player throws. From
    their means `exploitability` says what two best replies would earn, 0 in equilibrium.

    ```
    flowzoo train examples/games.py:Throws --model pocket:math --algorithm dr_mas \
        --sharing isolated --options credit=local
    ```
    """

    name: ClassVar[str] = "throws_v0"
    roles: ClassVar[Mapping[str, int]] = {"first": 1, "second": 1}
    default_task: ClassVar[str] = "flowzoo.envs:ResetTask"
    score_range: ClassVar[tuple[float, float]] = (LOST, -LOST)
    prompts: ClassVar[Mapping[str, str]] = {
        "throw": "Rock is 1, paper 2, scissors 3. Your hand as \\boxed{n}."
    }

    def play(self, problem: Any) -> Any:
        """Both throw at once."""
        hands = yield [
            Ask(f"{role}_0", self.wording("throw"), partial(boxed_number, count=3),
                partial(lone_number, count=3))
            for role in self.roles
        ]  # fmt: skip
        first, second = map(self.read, hands)
        facts = {
            f"{role}_{hand}": thrown == number
            for role, thrown in (("first", first), ("second", second))
            for number, hand in enumerate(HANDS, 1)
        }
        pay = throw_pay(first, second)
        return Outcome(facts=facts, payoffs=Payoffs({"first_0": pay, "second_0": -pay}))

    def expert(self, role: str, messages: Any, problem: Any, rng: Any, right: bool) -> str:
        """The equilibrium: any hand."""
        return f"\\boxed{{{rng.randint(1, 3)}}}"

    def samples(self) -> tuple[str, ...]:
        """Hands, and no hand."""
        return ("\\boxed{1}", "\\boxed{2}", "\\boxed{3}", "I pass.")


@dataclass(frozen=True)
class Commons(Workflow):
    r"""Everybody may give to a pot, which grows and is shared equally: giving helps the others.

    A player keeps what is not given and gets a third of the pot; who says no number earns nothing.
    The score is the part of all coins that was given, from 0 to 1: `credit=team` pays for the
    common good, `credit=local` pays what a player earned, and giving one coin is the best reply.

    Facts: `given` (mean coins of a player) and `regret` (what a player would have earned more with
    one coin, on average).

    ```
    flowzoo train examples/games.py:Commons --model pocket:math --algorithm dr_mas \
        --options credit=local
    ```
    """

    name: ClassVar[str] = "commons_v0"
    roles: ClassVar[Mapping[str, int]] = {"player": 3}
    default_task: ClassVar[str] = "flowzoo.envs:ResetTask"
    prompts: ClassVar[Mapping[str, str]] = {
        "give": "You and two others have {own} coins each. The pot is multiplied by {factor} and "
        "shared equally. Coins that you give, 1 to {own}, as \\boxed{{n}}."
    }

    def play(self, problem: Any) -> Any:
        """The score is the part of the coins that was given: the players' common interest."""
        rng = problem.rng()
        own, factor = rng.randint(5, 15), rng.choice((1.5, 2.0))
        prompt = self.wording("give").format(own=own, factor=factor)
        read = partial(boxed_number, count=own), partial(lone_number, count=own)
        replies = yield [Ask(f"player_{i}", prompt, *read) for i in range(3)]
        given = [self.read(reply) or 0 for reply in replies]
        share = factor * sum(given) / 3
        # Who says no number gets nothing.
        pays = {f"player_{i}": own - gift + share if gift else 0.0 for i, gift in enumerate(given)}
        # What a player would have earned more with the smallest gift, which is the best reply.
        regrets = [(gift - 1) * (1 - factor / 3) for gift in given if gift]
        facts = {"given": sum(given) / 3, "regret": sum(regrets) / max(1, len(regrets))}
        return Outcome(None, sum(given) / (3 * own), facts, Payoffs(pays))

    def expert(self, role: str, messages: Any, problem: Any, rng: Any, right: bool) -> str:
        """Somebody who gives all, or one coin."""
        own = problem.rng().randint(5, 15)
        return f"\\boxed{{{own if right else 1}}}"

    def samples(self) -> tuple[str, ...]:
        """Gifts, and none."""
        return ("\\boxed{1}", "\\boxed{5}", "I keep them.")
