r"""The formulas of an algorithm, in LaTeX, from its choices.

Calls are numbered by i, tokens of a reply by t; y_i is the reply of call i and x_i its prompt.
"""

from __future__ import annotations

from flowzoo.baselines.advantages.spec import AdvantageSpec
from flowzoo.baselines.settings.algorithms import Algorithm

TARGET = {
    "episode": ("R_i", "the return of the episode that call $i$ belongs to"),
    "row": ("r_i", "the call's own reward"),
    "return_to_go": (
        "G_i",
        "the agent's rewards from call $i$ on, discounted by {gamma} a turn, the team's outcome "
        "once",
    ),
    "node": ("V_i", "the mean value of what followed the candidate in the tree"),
    "candidate": ("V_i", "the value of the candidate"),
}
COLUMN = {
    "problem": "problem", "episode": "episode", "role": "role", "agent": "agent", "turn": "turn",
    "name": "trajectory name", "node": "node", "state": "state", "policy": "policy's batch",
}  # fmt: skip


def advantage(spec: AdvantageSpec) -> tuple[str, list[str]]:
    """The advantage's formula, and what its letters mean (Markdown with `$` around formulas)."""
    letter, meaning = TARGET[spec.target]
    legend = [f"${letter}$: {meaning.format(gamma=f'{spec.gamma:g}')}."]
    above = letter
    if spec.mean != "none":
        above = f"{letter} - b_i"
        legend.append(f"$b_i$: {baseline(spec)}.")
    if spec.std == "none":
        formula = f"A_i = {above}"
    elif spec.std_of == "difference":
        formula = (
            rf"A_i = \frac{{D_i - \bar{{D}}}}{{\sigma_i + \varepsilon}},"
            rf"\quad D_i = {above}"
        )
        legend.append(rf"$\bar{{D}}$: the mean of these differences over {group(spec.std_group)}.")
    else:
        formula = rf"A_i = \frac{{{above}}}{{\sigma_i + \varepsilon}}"
    if spec.std != "none":
        of = "the differences $D$" if spec.std_of == "difference" else f"${letter}$"
        legend.append(
            rf"$\sigma_i$: the {spec.std} deviation of {of} over "
            f"{group(spec.std_group)}, {counted(spec.std_weight)}; "
            rf"$\varepsilon$ = {spec.eps:g}."
        )
    alone = {
        "zero": "gets no advantage",
        "raw": "gets its target as it is",
        "widen": "takes the statistics of the next wider group",
    }
    if spec.mean not in ("running", "none") or spec.std != "none":
        legend.append(f"A group of one {alone[spec.singleton]}.")
    return formula, legend


def baseline(spec: AdvantageSpec) -> str:
    """The baseline in words."""
    over, once = group(spec.mean_group), counted(spec.mean_weight)
    return {
        "mean": f"the mean over {over}, {once}",
        "loo": f"the mean of the others of {over}, {once}",
        "max": f"the best of {over}, {once}",
        "running": f"the running mean (it keeps {spec.decay:g} of itself a batch) over {over}",
    }[spec.mean]


def group(columns: tuple[str, ...]) -> str:
    """A group in words."""
    return f"the calls of one {', '.join(COLUMN[column] for column in columns)}"


def counted(weight: str) -> str:
    """The unit of a mean in words."""
    return "every episode counted once" if weight == "episode" else "every call counted once"


def loss(algorithm: Algorithm) -> list[str]:
    """The formulas of the loss: the ratio, the loss of a token, and how tokens become a number."""
    token = r"\log \pi_\theta(y_{i,t})"
    old = r"\pi_{\mathrm{old}}"
    low = "0" if algorithm.clip_low is None else f"1 - {tex(algorithm.clip_low)}"
    high = r"\infty" if algorithm.clip_high is None else f"1 + {tex(algorithm.clip_high)}"
    formulas = []
    if algorithm.ratio == "none":
        formulas.append(rf"\ell_{{i,t}} = -A_i\, {token}")
    else:
        ratio, name = r"\frac{\pi_\theta(y_{i,t})}{" + old + r"(y_{i,t})}", r"\rho_{i,t}"
        if algorithm.ratio == "sequence":
            name = r"s_i"
            ratio = r"\left(\frac{\pi_\theta(y_i)}{" + old + r"(y_i)}\right)^{1/|y_i|}"
        clipped = rf"\mathrm{{clip}}({name},\; {low},\; {high})"
        formulas.append(f"{name} = {ratio}")
        if algorithm.clipping == "weight":
            formulas.append(rf"\ell_{{i,t}} = -\mathrm{{sg}}[{clipped}]\, A_i\, {token}")
        else:
            formulas.append(rf"\ell_{{i,t}} = -\min\left({name} A_i,\; {clipped}\, A_i\right)")
        if algorithm.dual_clip is not None:
            formulas.append(
                rf"\ell_{{i,t}} \le {algorithm.dual_clip:g}\,|A_i| \text{{ where }} A_i < 0"
            )
    sums = {
        "token-mean": r"\frac{1}{\sum_i |y_i|} \sum_i \sum_t",
        "seq-mean-token-mean": r"\frac{1}{N} \sum_i \frac{1}{|y_i|} \sum_t",
        "seq-mean-token-sum": r"\frac{1}{N} \sum_i \sum_t",
        "token-sum": r"\frac{1}{N\, T_{\max}} \sum_i \sum_t",
    }
    formulas.append(rf"L = {sums[algorithm.aggregation]} \ell_{{i,t}}")
    return formulas


def tex(number: float) -> str:
    """A number in a formula."""
    mantissa, _, power = f"{number:g}".partition("e")
    return rf"{mantissa} \cdot 10^{{{int(power)}}}" if power else mantissa
