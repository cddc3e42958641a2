"""Answers that are wrong and look right, by the cause that once paid them."""

import pytest

import flowzoo.reward.math.score as scoring
from flowzoo.reward import MathOptions, score_batch
from flowzoo.reward.math import judge as math_judge

# Functions that are the gold at every point within the usual reach.
BEYOND = [
    ("x", r"\boxed{\max(x,-10^{30})}"),
    ("x", r"\boxed{x+\lfloor|x|/10^{50}\rfloor}"),
    ("x", r"\boxed{\ln e^x+\max(0,x-10^6)}"),
    ("x", r"\boxed{\sinh^{-1}(\sinh x)+\max(0,x-500)}"),
    ("x", r"\boxed{x\frac{|x^2-10^{20}|}{10^{20}-x^2}}"),
    ("n!", r"\boxed{(n-1)!\,n+\binom n{200}}"),
    (r"\frac{n(n+1)}{2}", r"\boxed{\sum_{k=1}^n k+\binom n{250}}"),
    ("x", r"\boxed{x+0^{|x|}}"),
]
# Several equations in one answer: none of them is the answer, and a hedge is never right.
SEVERAL = [
    ("3", r"\boxed{x=1 \lor x=2 \lor x=3}"),
    (r"x=2 \quad x=3", r"\boxed{3}"),
    ("a=1\nb=2", "2"),
    ("a=1\nb=2", r"\boxed{2}"),
    ("3", r"\boxed{x=1 \quad x=3}"),
    ("3", r"\boxed{x=1 \\ x=3}"),
    ("3", r"\boxed{x=1~x=3}"),
    ("3", r"\boxed{x=1 x=3}"),
    ("3", "\\boxed{x=1\nx=3}"),
    ("3", r"\boxed{x=1 | x=3}"),
    ("3", r"\boxed{x=1 \text{or} x=3}"),
    ("3", r"\boxed{x=1\text{ or }3}"),
    ("3", r"\boxed{x=1 \vee x=3}"),
    ("3", r"\boxed{x=1 \Rightarrow x=3}"),
    ("3", r"\boxed{x=1\\x=3}"),
    ("3", r"\boxed{a=1 \; b=3}"),
    ("3", "x=1,x=3"),
    ("3", r"a=1 \quad b=2 \quad c=3"),
    ("5", r"\begin{cases}x=2\\y=5\end{cases}"),
    ("5", r"\begin{aligned}x&=2\\y&=5\end{aligned}"),
    ("5", r"x=2 \newline x=5"),
    ("5", r"x = 2 \;\text{or}\; x = 5"),
    ("5", r"x=2\quad\text{or}\quad x=5"),
    ("5", r"x=2\,\lor\,x=5"),
    ("5", "x=2; x=5"),
    ("5", "x=2 / x=5"),
    ("5", r"x=2 \text{ but } x=5"),
    ("5", r"x=2\land y=5"),
    ("5", r"x=2 \qquad 5"),
    ("5", r"2 \quad 5"),
    ("5", r"2 \\ 5"),
    ("5", r"2 \lor 5"),
    ("5", r"x=2\to x=5"),
    ("5", "2=x=5"),
    ("5", r"x<5 \quad x=5"),
    ("7", r"3 \quad x=7"),
]
# Functions put together from pieces, which agree on one piece only.
PIECES = [
    ("30-x", "|x-30|"),
    ("n", r"\min(n,6)"),
    ("42", r"\max(n,100)-58"),
    ("20", "|t-10|+|t+10|"),
    ("10-x", r"\sqrt{x^2-20x+100}"),
    ("5", "2 | 5"),
    ("x", r"\max(x,-50)"),
    ("x", r"\min(x,1000)"),
    ("0", r"\max(0,x-200)"),
    ("x^2", "|x|x"),
    ("x+y", "|x|+|y|"),
    ("x", r"\sqrt{x^2}"),
    ("a-b", "|a-b|"),
    (r"\frac{x}{|x|}", "1"),
    ("x-1000", r"\sqrt{(x-1000)^2}"),
    ("5-2x", r"\sqrt{4x^2-20x+25}"),
    ("x+7", "|x+7|"),
    ("2x", "|x-50|+|x+50|"),
    ("100", "|x-50|+|x+50|"),
    ("x", r"x+\lfloor x/10000\rfloor"),
    ("0", r"\lfloor \frac{x}{10^6}\rfloor"),
    (r"\arctan x+\arctan\frac1x", r"\frac\pi2"),
    (r"\arcsin(\sin x)", "x"),
    (r"\arccos(\cos x)", "x"),
    (r"\ln(x^2)", r"2\ln|x|+0.0000001"),
    ("x", r"\frac{|x-9|-|9-x|}{2}+|x|"),
]
# Functions without values are not linear in their arguments; known ones have their values.
FUNCTIONS = [
    (r"\Phi(2)-\Phi(0)", r"\Phi(1)-\Phi(-1)"),
    ("F(b)-F(a)", "F(b-a)-F(0)"),
    ("P(A)+P(B)", "P(A+B)+P(0)"),
    (r"\Gamma(3)-\Gamma(2)", r"\Gamma(2)-\Gamma(1)"),
    (r"\det(A)+\det(B)", r"\det(A+B)+\det(0)"),
    (r"\operatorname{erf}(2)-\operatorname{erf}(1)",
     r"\operatorname{erf}(1)-\operatorname{erf}(0)"),
    (r"\zeta(4)-\zeta(3)", r"\zeta(3)-\zeta(2)"),
    (r"\operatorname{tr}(AB)+\operatorname{tr}(C)",
     r"\operatorname{tr}(AB+C)+\operatorname{tr}(0)"),
    ("G(3)-G(1)", "G(2)-G(0)"),
    ("f(2)", "2f(1)"),
    ("f(x+1)", "f(x)+f(1)"),
    ("f(3)", "f(2)+1"),
    (r"\operatorname{tr}(A)", r"2\operatorname{tr}(A/2)+0.1"),
    ("E(X^2)", "E(X)^2"),
    ("f'(x)", "f(x)"),
    ("f^{-1}(x)", "f(x)^{-1}"),
    (r"\ln\Gamma(5)", r"\ln\Gamma(4)"),
    (r"\sum_{k=1}^{n}a_k", r"\sum_{k=1}^{n-1}a_k+a_1"),
]  # fmt: skip
# Steps, parities and sums, at whole numbers.
WHOLE = [
    (r"\sum_{k=1}^{n+1} k", r"\sum_{k=1}^{n} k + \sum_{k=1}^{1}k"),
    (r"\lceil n/2\rceil", r"\lfloor n/2\rfloor+1"),
    (r"\sum_{k=1}^n k^2", r"\frac{n(n+1)}{2}"),
    (r"\sum_{i=0}^{n}2^i", "2^{n+1}"),
    (r"\lfloor n/3\rfloor", r"\frac{n-1}{3}"),
    (r"\lfloor n/2\rfloor", r"\frac{2n-1+(-1)^{n+1}}{4}"),
    ("(-1)^n", "1"),
    ("(-1)^n", r"\cos(2\pi n)"),
    (r"n \bmod 2", r"\frac{1+(-1)^n}{2}"),
    (r"\lceil x\rceil", r"\lfloor x\rfloor+1"),
    (r"\sin(\pi x)", "0"),
    (r"\lfloor 2n\rfloor", "2n+1"),
]
# Numbers that are close, and no more.
NEAR = [
    ("1", "0.9999999999999999"),
    ("5", "5.0000000000000000001"),
    (r"e^{\pi\sqrt{163}}", "262537412640768744"),
    (r"\pi", "3.14159265358979328"),
    ("2", r"\sum_{n=0}^{90}2^{-n}"),
    ("0.1", "0.10000000000000001"),
    ("1/3", "0.33333333333333334"),
    ("9570149208162305/17", "562949953421312.00"),  # of the double alone: 562949953421312.0588…
    ("1/3", "0.3333333333333333333334"),
    ("10^{30}", "10^{30}+1"),
    (r"\frac{1}{7}", "0.142857142857143857"),
    (r"\pi", r"\frac{355}{113}"),
    ("1", "1-10^{-50}"),
    ("0", "10^{-300}"),
    ("0", "e^{-1000}"),
    (r"\ln 2", r"\sum_{k=1}^{100}\frac{(-1)^{k+1}}{k}"),
    ("e", r"\sum_{k=0}^{60}\frac1{k!}"),
    ("e", "(1+10^{-30})^{10^{30}}"),
    (r"\frac{\pi^2}{6}", r"\sum_{k=1}^{199}\frac1{k^2}"),
]
# A chain or an equation whose sides do not give the value.
SIDES = [
    ("3", "10^{400}=3"),
    ("3", "2004!=3"),
    ("3", r"\frac10=3"),
    ("3", r"\log_1(216)=3"),
    ("3", r"\int_0^1 x\,dx=3"),
    ("x=1", "1=1"),
    ("3", r"\sqrt{-4}=3"),
    ("3", r"3 \cdot 10^{5000}=3"),
    ("3", r"\Gamma(3)=3"),
    ("3", r"\zeta(2)=3"),
    ("3", r"\sum_{k=1}^{\infty}\frac1k=3"),
    ("3", r"\lim_{x\to0}\frac1x=3"),
    ("3", r"\frac00=3"),
    ("3", "0^0=3"),
    ("3", r"\ln 0=3"),
    ("3", "2=2=3"),
    ("x=3", "3=3"),
    ("3", "3=3.0000001"),
    ("3", r"\binom{5}{2}=3"),
    ("3", r"\tan\frac\pi2=3"),
    ("3", "9^{9^{9^9}}=3"),
    ("3", r"\infty=3"),
    ("3", "x=x=3"),
    ("3", r"\text{foo bar}=3=4"),
    ("3", "x^2=3"),
    ("3", "|x|=3"),
    ("3", "2x=3"),
    ("3", "x+y=3"),
    ("3", r"\sqrt x=3"),
    ("y=3", "x=3"),
    ("3", "x>3"),
    ("3", r"x\ne3"),
]
UNIONS = [
    (r"(0,1)\cup(2,3)", r"(0,1)\cup(2,4)"),
    (r"(-\infty,-1)\cup(1,\infty)", r"(-\infty,-1]\cup[1,\infty)"),
    (r"[1,2]\cup[3,4]", "[1,4]"),
    (r"(0,\sqrt2)\cup(2,3)", r"(0,1.5)\cup(2,3)"),
    ("|x|>1", "|x|>2"),
    (r"(-\infty,1)\cup(2,\infty)", r"x<1\text{ or }x>3"),
]
# Differences far below the leading digits, and limits that nobody computed.
ABSORBED = [
    (r"\lim_{n\to\infty}\sum_{k=1}^{n}\frac1{k^2}", r"\lim_{n\to\infty}\sum_{k=1}^{n}\frac1{k^3}"),
    (r"\lim_{x\to\infty}f(x)", "0"),
    ("0", r"\lim_{x\to\infty}\sin x"),
    ("1", r"\lim_{x\to0}\frac{|x|}{x}"),
    (r"\prod_{k=1}^{150}(x+k)", r"\prod_{k=1}^{150}(x+k)+0.5"),
    (r"10^{200}\pi", r"10^{200}\pi+1"),
    ("1", r"\cos(10^{-100})"),
    ("1", "e^{10^{-300}}"),
    ("1", r"\tanh 1000"),
    ("1", r"\operatorname{erf}(50)"),
    (r"\frac\pi2", r"\arctan(10^{100})"),
    ("x", "x+10^{-200}"),
    ("x^2", r"x^2+10^{-90}\sin x"),
    (r"\pi", r"\pi+10^{-150}"),
    ("0", "10^{-200}"),
    ("0", r"\pi^{-900}"),
    (r"\sqrt{10^{100}}", r"\sqrt{10^{100}+1}"),
    ("0", r"\sin(10^{-200})"),
    ("10^{300}", r"\sqrt{10^{600}+1}"),
    (r"\ln(10^{100})", r"\ln(10^{100}+1)"),
]
COSTLY = [
    "|a-" * 30 + "x" + "|" * 30,
    r"\sum_{k=1}^{n}\binom{n}{k}\sin(k)" * 6,
    r"\int_0^1 \sin(\cos(\exp(\sin(x^2+e^x))))dx",
    "+".join(rf"\left|{a}^5-3{a}+\sin {a}\right|" for a in "abcdghjkmnopqrst"),
]
UNKNOWNS = [("6", "x(x+1)=6"), ("6", "p(p-1)=6"), ("6", "2(x+1)=6"), ("6", "a(b+c)=6")]


@pytest.mark.parametrize(
    ("gold", "answer"),
    [*SEVERAL, *PIECES, *FUNCTIONS, *WHOLE, *NEAR, *SIDES, *UNKNOWNS, *ABSORBED, *BEYOND],
)
def test_is_not_paid(gold: str, answer: str) -> None:
    boxed = answer if "boxed" in answer else rf"so \boxed{{{answer}}}."
    assert score_batch([boxed], [gold]).statuses == ["different"]
    assert score_batch([answer], [gold]).scores == [0.0]


def test_unions_of_intervals_are_decided_without_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_judge, "_ask", lambda pairs, deadline: 1 / 0)
    for gold, answer in UNIONS:
        assert score_batch([answer], [gold]).statuses == ["different"]
        assert score_batch([gold], [gold]).statuses == ["equal"]


def test_the_judge_is_started_beforehand_for_a_batch_that_may_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[bool] = []
    monkeypatch.setattr(scoring, "warm", lambda: started.append(True))
    score_batch(["1"] * 40, ["2"] * 40)
    score_batch(["1"] * 40, ["x<2"] * 40, MathOptions(judge="none"))
    score_batch(["1"], ["x<2"])
    assert started == []
    score_batch(["1"] * 40, ["x<2"] * 40)
    assert started == [True]
    math_judge.warm()
    pair = ("z \\in [-7,-1] \\cup [1,7]", "1\\leq|z|\\leq 7")
    assert math_judge._ask([pair], 60.0) == ["equal"]


@pytest.mark.usual(2)
@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("text", COSTLY)
def test_the_work_of_a_comparison_is_bounded(text: str) -> None:
    options = MathOptions(read="answer", judge="none")
    for gold in (f"{text}+0.5", "1"):
        assert score_batch([text], [gold], options).statuses == ["different"]
    score_batch([text], [f"{text}+z-z+0"], options)  # whatever it says, it comes back
