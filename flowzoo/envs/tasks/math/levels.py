r"""Generated mathematics problems in five levels, each with its worked solution.

1. a product of digits plus or minus a number, all results in 0..99 (`Compute 12+7*8.`; 15,000
   instances)
2. two to four operations on larger numbers
3. linear equations in one unknown
4. sums of fractions, quadratic equations, systems of two linear equations
5. number theory: gcd, lcm, powers modulo n, counting divisors

A solution is a chain of short steps, `7*8=56. 12+56=68. \boxed{68}`: within reach of a model of a
million parameters. With a `StepMistake`, the same generator makes one wrong step and goes on from
it: a plausible wrong solution. Random draws never depend on a mistake.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StepMistake:
    """An error of `delta` in step `step` (from 0) of a solution."""

    step: int
    delta: int


@dataclass(frozen=True, slots=True)
class MathInstance:
    """A generated problem: statement, final answer and worked solution of `steps` steps."""

    text: str
    gold: str
    solution: str
    steps: int


@dataclass(slots=True)
class SolutionWriter:
    """Writes the steps of a solution, with the mistake if there is one."""

    mistake: StepMistake | None = None
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def step(self, before: str, value: int, after: str = "") -> int:
        """Write `before`, the value (wrong if this is the step of the mistake) and `after`."""
        if self.mistake is not None and self.mistake.step == self.count:
            value += self.mistake.delta
        self.count += 1
        self.lines.append(f"{before}{value}{after}.")
        return value

    def instance(self, text: str, answer: int | str) -> MathInstance:
        """The finished instance; `answer` is what the chain arrived at."""
        solution = " ".join([*self.lines, f"\\boxed{{{answer}}}"])
        return MathInstance(text, str(answer), solution, self.count)


LevelGenerator = Callable[[random.Random, SolutionWriter], MathInstance]


def _level_1(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    kind, a, b = rng.randrange(4), rng.randint(2, 9), rng.randint(2, 9)
    product = a * b
    low, high = ((1, 99 - product), (1, 99 - product), (1, product), (product, 99))[kind]
    c = rng.randint(low, high)
    return _product_and(chain, ("c+p", "p+c", "p-c", "c-p")[kind], a, b, c)


def _product_and(chain: SolutionWriter, form: str, a: int, b: int, c: int) -> MathInstance:
    # In `form` p is the product of a and b.
    numbers = {"c": c, "p": chain.step(f"{a}*{b}=", a * b)}
    texts = {"c": str(c), "p": f"{a}*{b}"}
    left, sign, right = form
    result = numbers[left] + numbers[right] if sign == "+" else numbers[left] - numbers[right]
    answer = chain.step(f"{numbers[left]}{sign}{numbers[right]}=", result)
    return chain.instance(f"Compute {texts[left]}{sign}{texts[right]}.", answer)


def _level_2(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    return rng.choice((_two_operations, _four_operations))(rng, chain)


def _two_operations(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    kind = rng.choices(range(6), weights=(18, 18, 18, 18, 20, 8))[0]
    a, b, c, d = rng.randint(1, 99), rng.randint(2, 9), rng.randint(2, 12), rng.randint(2, 12)
    e, f, g = rng.randint(2, 12), rng.randint(1, 20), rng.randint(1, 20)
    if kind < 4:
        first = a + 100 if kind == 2 else a
        return _product_and(chain, ("c+p", "p-c", "c-p", "p+c")[kind], b, c, first)
    if kind == 4:
        left, right = chain.step(f"{d}*{c}=", d * c), chain.step(f"{b}*{e}=", b * e)
        text = f"Compute {d}*{c}+{b}*{e}."
        return chain.instance(text, chain.step(f"{left}+{right}=", left + right))
    total = chain.step(f"{f}+{g}=", f + g)
    return chain.instance(f"Compute ({f}+{g})*{b}.", chain.step(f"{total}*{b}=", total * b))


def _four_operations(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    kind = rng.randrange(3)
    a, b, c, d, e = (rng.randint(2, 30) for _ in range(5))
    p, q = rng.randint(2, 12), rng.randint(2, 12)
    if kind == 0:
        left, right = chain.step(f"{a}*{p}=", a * p), chain.step(f"{b}*{q}=", b * q)
        total = chain.step(f"{left}+{right}=", left + right)
        text = f"Compute {a}*{p}+{b}*{q}-{e}."
        return chain.instance(text, chain.step(f"{total}-{e}=", total - e))
    if kind == 1:
        total = chain.step(f"{a}+{b}=", a + b)
        left, right = chain.step(f"{total}*{p}=", total * p), chain.step(f"{c}*{q}=", c * q)
        text = f"Compute ({a}+{b})*{p}-{c}*{q}."
        return chain.instance(text, chain.step(f"{left}-{right}=", left - right))
    left, right = chain.step(f"{c}+{d}=", c + d), chain.step(f"{a}-{e}=", a - e)
    product = chain.step(f"{p}*{left}=", p * left)
    text = f"Compute {p}*({c}+{d})-({a}-{e})."
    return chain.instance(text, chain.step(f"{product}-({right})=", product - right))


def _level_3(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    # Linear equations; a step with a mistake may not divide evenly, then the chain rounds down.
    kind = rng.randrange(3)
    x, a, b, c = rng.randint(-15, 30), rng.randint(2, 12), rng.randint(1, 60), rng.randint(1, 9)
    if kind == 0:
        result = a * x + b
        product = chain.step(f"{a}x={result}-{b}=", result - b)
        text = f"Solve {a}x+{b}={result} for x."
        return chain.instance(text, chain.step(f"x={product}/{a}=", product // a))
    if kind == 1:
        result = a * (x + b)
        inner = chain.step(f"x+{b}={result}/{a}=", result // a)
        text = f"Solve {a}(x+{b})={result} for x."
        return chain.instance(text, chain.step(f"x={inner}-{b}=", inner - b))
    right = a * x + b
    text = f"Solve {a + c}x+{b}={c}x{right:+d} for x."
    factor = chain.step(f"{a + c}-{c}=", a)
    product = chain.step(f"{factor}x={right}-{b}=", right - b)
    return chain.instance(text, chain.step(f"x={product}/{factor}=", product // (factor or 1)))


def _level_4(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    return rng.choice((_fractions, _quadratic, _system))(rng, chain)


def _fractions(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    b, d = rng.randint(2, 15), rng.randint(2, 15)
    a, c = rng.randint(1, 3 * b), rng.randint(1, 3 * d)
    left, right = chain.step(f"{a}*{d}=", a * d), chain.step(f"{c}*{b}=", c * b)
    top, bottom = chain.step(f"{left}+{right}=", left + right), chain.step(f"{b}*{d}=", b * d)
    shared = math.gcd(top, bottom) or 1
    top, bottom = top // shared, bottom // shared
    answer = str(top) if bottom == 1 else f"\\frac{{{top}}}{{{bottom}}}"
    text = f"Compute {a}/{b}+{c}/{d}. Give a fraction in lowest terms."
    return chain.instance(text, answer)


def _quadratic(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    low = rng.randint(-12, 12)
    high = low + rng.randint(1, 15)
    total, product = low + high, low * high
    text = f"Find the larger root of x^2{-total:+d}x{product:+d}=0."
    root = chain.step(f"({total})^2-4*({product})=", total * total - 4 * product)
    gap = chain.step("its root is ", math.isqrt(abs(root)))
    return chain.instance(text, chain.step(f"(({total})+{gap})/2=", (total + gap) // 2))


def _system(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    x, y, a, b = rng.randint(-9, 20), rng.randint(-9, 20), rng.randint(2, 9), rng.randint(1, 9)
    first, second = a * x + b * y, x - y
    text = f"Given {a}x+{b}y={first} and x-y={second}, find x+y."
    total = chain.step(f"{a + b}y={first}-{a}*({second})=", first - a * second)
    low = chain.step(f"y={total}/{a + b}=", total // (a + b))
    high = chain.step(f"x={low}+({second})=", low + second)
    return chain.instance(text, chain.step(f"x+y={high}+({low})=", high + low))


def _level_5(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    return rng.choice((_gcd, _lcm, _power, _divisors))(rng, chain)


def _euclid(chain: SolutionWriter, a: int, b: int) -> int:
    while b:
        a, b = b, chain.step(f"{a} mod {b}=", a % b)
        b = max(b, 0)
    return a


def _gcd(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    shared = rng.randint(2, 40)
    a, b = shared * rng.randint(2, 60), shared * rng.randint(2, 60)
    a, b = max(a, b), min(a, b)
    text = f"Find the greatest common divisor of {a} and {b}."
    return chain.instance(text, _euclid(chain, a, b))


def _lcm(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    shared = rng.randint(1, 12)
    a, b = shared * rng.randint(2, 20), shared * rng.randint(2, 20)
    a, b = max(a, b), min(a, b)
    text = f"Find the least common multiple of {a} and {b}."
    part = chain.step(f"{a}/{_euclid(chain, a, b)}=", a // math.gcd(a, b))
    return chain.instance(text, chain.step(f"{part}*{b}=", part * b))


def _power(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    base, exponent, modulus = rng.randint(2, 30), rng.randint(5, 99), rng.randint(7, 60)
    value = chain.step(f"{base} mod {modulus}=", base % modulus)
    start = value
    for bit in bin(exponent)[3:]:
        square = f"{value}^2" if bit == "0" else f"{value}^2*{start}"
        power = value * value if bit == "0" else value * value * start
        value = chain.step(f"{square} mod {modulus}=", power % modulus)
    return chain.instance(f"Find the remainder of {base}^{exponent} divided by {modulus}.", value)


def _divisors(rng: random.Random, chain: SolutionWriter) -> MathInstance:
    number = rng.randint(12, 3000)
    left, prime, count = number, 2, 1
    while left > 1:
        if prime * prime > left:
            prime = left
        exponent = 0
        while left % prime == 0:
            left, exponent = left // prime, exponent + 1
        if exponent:
            factor = exponent + 1
            count = chain.step(f"{prime}^{exponent}: {count}*{factor}=", count * factor)
        prime += 1
    return chain.instance(f"How many positive divisors does {number} have?", count)


LEVELS: dict[int, LevelGenerator] = {
    1: _level_1,
    2: _level_2,
    3: _level_3,
    4: _level_4,
    5: _level_5,
}


def generate(level: int, rng: random.Random, mistake: StepMistake | None = None) -> MathInstance:
    """One problem of `level` (1 to 5) drawn from `rng`; with `mistake`, its solution goes wrong."""
    # The statement is the same with and without a mistake; `gold` is then the wrong final answer.
    return LEVELS[level](rng, SolutionWriter(mistake))
