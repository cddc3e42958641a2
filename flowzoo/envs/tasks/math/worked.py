"""Problems for worked examples where the task's own are the rows of a file."""

from __future__ import annotations

from typing import NamedTuple


class WorkedProblem(NamedTuple):
    """A problem with its answer and a solution in words."""

    text: str
    gold: str
    solution: str


WORKED = (
    WorkedProblem(
        "A bakery packs 12 rolls in a bag. Nora buys 4 bags for a party and 9 rolls are left over. "
        "How many rolls were eaten?",
        "39",
        "4 bags hold 4 * 12 = 48 rolls. 9 are left over, so 48 - 9 = 39 rolls were eaten.",
    ),
    WorkedProblem(
        "If $3x + 7 = 22$, what is the value of $2x$?",
        "10",
        "Subtracting 7 gives $3x = 15$, so $x = 5$. Then $2x = 2 \\cdot 5 = 10$.",
    ),
    WorkedProblem(
        "A train covers 150 miles in 2.5 hours. At the same speed, how many miles does it cover in "
        "4 hours?",
        "240",
        "Its speed is 150 / 2.5 = 60 miles per hour. In 4 hours it covers 4 * 60 = 240 miles.",
    ),
    WorkedProblem(
        "A bag has 3 red and 5 blue marbles. One marble is drawn at random. What is the "
        "probability that it is red? Give a common fraction.",
        "\\frac{3}{8}",
        "There are 3 + 5 = 8 marbles, and 3 of them are red. The probability is $\\frac{3}{8}$.",
    ),
    WorkedProblem(
        "Omar saves $15 a week. He wants a bicycle for $180 and has $60 already. In how many weeks "
        "can he buy it?",
        "8",
        "He still needs 180 - 60 = 120 dollars. At 15 a week that takes 120 / 15 = 8 weeks.",
    ),
    WorkedProblem(
        "What is the area of a rectangle whose sides are 9 and 14?",
        "126",
        "The area is the product of the sides: $9 \\cdot 14 = 126$.",
    ),
)
