"""Findings on a run's roles: checkers that stopped looking, dead roles, blame, specialization."""

from collections.abc import Sequence

from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.diagnostics.blame import (
    FAITHFUL,
    LEAST,
    STRANGE,
    Blame,
    RoleBlame,
    find_blame,
)
from flowzoo.baselines.diagnostics.checkers import (
    JUDGES,
    Chooser,
    Episode,
    JudgeShares,
    LoopValue,
    answering_role,
    candidate_role,
    chooser,
    judges,
    loop_value,
)
from flowzoo.baselines.diagnostics.cliff import FELL
from flowzoo.baselines.diagnostics.roles import (
    SAME,
    RoleTest,
    became_alone,
    became_constant,
    became_copy,
    best_steps,
    lost_skill,
    never_read,
    never_right,
    no_longer_asked,
)
from flowzoo.baselines.report.accuracy import FINE, is_gain
from flowzoo.baselines.report.by_policy import by_policy, run_by_policy, whole_role
from flowzoo.baselines.report.findings import Facts, Finding, RunFindings
from flowzoo.baselines.report.words import gain_words, join_words, percent, pluralize, points
from flowzoo.baselines.run.reading import RunData, end_episodes, read_episodes
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.settings import read_settings
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import FlowzooError, UsageError
from flowzoo.files import read_json
from flowzoo.permission import PERMISSION
from flowzoo.sandbox.tier import AUTO, usable_tier

MOST_BLAMED = 300
"""Problems that are played again, the first ones; more would take too long for a page."""
MOST_BLAMED_PROGRAMS = 120
"""The same where programs are run for that."""
COLLAPSED = ("rejects everything", "accepts everything")
"""Verdicts on a judging role that are problems."""
OF_TRUTH = ("never right", "lost skill", "a single agent")
"""Kinds of tests that need right and wrong replies."""


def health(run: RunData, facts: Facts) -> RunFindings:
    """Report collapsed and dead roles, and after a loss the role whose decisions cost the most."""
    fell = facts["cliff"]["verdict"] in FELL
    findings = role_findings(run, is_gain(facts["gain"]))
    costs: dict[str, RoleBlame] = {}
    blamed = ""
    broken = fell or any(finding.level == "bad" for finding in findings)
    if len(run.roles) > 1 and broken and not run.pays:
        replay = blame_facts(run, fell=fell)
        findings.append(blame_finding(replay))
        blame: Blame | None = replay["blame"]
        if blame is not None and blame.fidelity >= FAITHFUL:
            blamed = blame.blamed
            costs = {role.role: role for role in blame.roles if role.strange <= STRANGE}
    cleared = {role for role, cost in costs.items() if cost.cost.high < LEAST and role != blamed}
    free = [name for name in run_by_policy(run).roles if whole_role(name) in cleared]
    findings = [_acquit(finding) if finding.role in free else finding for finding in findings]
    return RunFindings({"blamed": blamed, "acquitted": free}, findings)


def _acquit(finding: Finding) -> Finding:
    # The replay is the stronger evidence: with its earlier decisions the team does no better.
    if finding.code != "lost skill" or finding.level != "bad":
        return finding
    text = f"{finding.text} Replayed with its earlier decisions, the team does no better."
    return finding._replace(level="result", text=text, code="")


def swaps(run: RunData, _: Facts) -> RunFindings:
    """Report the accuracy with the policies of two roles exchanged."""
    rows = swap_rows(run)
    return RunFindings({"swaps": rows}, [swap_finding(row, run.measure) for row in rows])


def _deaths(run: RunData, first: Sequence[Episode], last: Sequence[Episode]) -> list[RoleTest]:
    roles = run.roles
    tests: list[RoleTest | None] = []
    for role in roles:
        unread = never_read(run.evaluations, role)
        tests.append(unread)
        if unread is None or not unread.positive:  # what cannot be read is never right
            tests.append(never_right(run.evaluations, role))
    if len(roles) < 2:  # a team of one has no other role that could replace it
        return [test for test in tests if test is not None and test.positive]
    files, steps = run.transcript_files("eval"), run.steps
    tests.append(became_alone(first, last))
    tops = best_steps(run.evaluations, roles)
    comparisons = len(roles) * (len(steps) - 1)
    for role in roles:
        index = tops.get(role)
        if index is not None and steps[index] in files:
            best = by_policy(run, read_episodes(files[steps[index]]))
            tests.append(lost_skill(best, last, role, steps[index], comparisons))
        tests.append(no_longer_asked(first, last, role))
        tests += [became_constant(first, last, role), became_copy(first, last, role)]
    return [test for test in tests if test is not None]


def role_findings(run: RunData, team_gained: bool) -> list[Finding]:
    """Report roles that check and roles that may be dead, as far as episodes were saved.

    `team_gained`: the team ended above step 0.
    """
    findings: list[Finding] = []
    values: Sequence[tuple[int, LoopValue]] = ()
    ends = end_episodes(run)
    if ends is not None:
        first, last = ends
        deaths = _deaths(run_by_policy(run), by_policy(run, first), by_policy(run, last))
        if run.pays:  # no reply is right or wrong
            deaths = [test for test in deaths if test.kind not in OF_TRUTH]
        else:
            if choices := chooser(first, last):
                findings.append(_chooser_finding(choices))
            values = _loop_values(run, first, last)
            findings += [value_finding(values)] if values else []
        findings += death_findings(deaths, team_gained, run.pays) if deaths else []
    # A judge of a workflow that costs answers, or one that was trained, is urgent.
    costly = bool(values) and values[-1][1].high < 0
    trained = {name.split("/")[1] for row in run.rows for name, value in row.items()
               if name.startswith("signal/") and value > 0}  # fmt: skip
    judged = [
        _judge_finding(judge, urgent=costly or judge.role in trained)
        for judge in judges(run.evaluations)
    ]
    return [*judged, *findings]


def _loop_values(
    run: RunData, first: Sequence[Episode], last: Sequence[Episode]
) -> Sequence[tuple[int, LoopValue]]:
    # Worth of the workflow at the first and the last evaluation, by step.
    roles = candidate_role(first), answering_role([*first, *last])
    ends = ((run.steps[0], first), (run.steps[-1], last))
    worth = [
        (step, value)
        for step, episodes in ends
        if (value := loop_value(episodes, *roles)) is not None
    ]
    return worth if len(worth) == 2 else ()


def _judge_finding(judge: JudgeShares, *, urgent: bool) -> Finding:
    text = _judge_text(judge)
    if judge.born:
        text += (
            " It was so at every evaluation, before training as well. Start from a model that can "
            "judge, or from a warm start (`flowzoo sft`)."
        )
        title = f"The {judge.role} {judge.verdict} from the start"
        return Finding("bad" if urgent else "warn", title, text, "never judges", judge.role)
    if judge.verdict in COLLAPSED:
        text += (
            f" At step {judge.best_step} it did not. Its verdict hardly depends on its input any "
            "more."
        )
        title = f"The {judge.role} collapsed: it {judge.verdict}"
        return Finding("bad", title, text, judge.verdict, judge.role)
    if judge.verdict == "too few cases":
        return Finding("unknown", f"Too few verdicts of the {judge.role} to test it", text)
    if judge.found_below is None:
        title = f"Cannot tell whether the {judge.role} discriminates"
        text += " There are too few verdicts to find even a share that fell to 0."
        return Finding("unknown", title, text)
    text += (
        f" A true fall of a share to {percent(judge.found_below)} or less would be found with "
        "probability 0.8."
    )
    if judge.informed is not None and judge.informed[1] <= 0:
        return Finding("result", f"The {judge.role} judges no better than chance", text)
    return Finding("good", f"The {judge.role} still discriminates", text)


def _judge_text(judge: JudgeShares) -> str:
    names = JUDGES[judge.role]
    parts: list[str] = []
    for what, verb, best, now in (
        ("right", "accepted", judge.best_tpr, judge.tpr),
        ("wrong", "rejected", judge.best_tnr, judge.tnr),
    ):
        earlier = f"; {percent(best.share)} at the best evaluation before" if best else ""
        if now is not None:
            ends = f"{percent(now.low)} to {percent(now.high)}, n = {now.of:g}{earlier}"
            parts.append(f"{names[verb]} {percent(now.share)} ({ends}) of the {names[what]}")
    text = f"At the last evaluation the {judge.role} {' and '.join(parts)}."
    if judge.accepts is not None:
        text += f" Of its readable verdicts {percent(judge.accepts)} accept"
        if judge.abstained:
            text += f"; {percent(judge.abstained)} of all are unreadable"
        text += "."
    if judge.informed is not None:
        mean, low, high = judge.informed
        text += (
            f" Its informedness, the sum of both shares less 1, is {mean:.2f} (95\u00a0% interval "
            f"{low:.2f} to {high:.2f}; 0: its verdict does not depend on its input)."
        ).replace("-", "−")
    return text


def _chooser_finding(choices: Chooser) -> Finding:
    text = (
        f"Position {choices.position} of {choices.candidates} has "
        f"{percent(choices.after.share)} of the choices at the last evaluation (95\u00a0% interval "
        f"{percent(choices.after.low)} to {percent(choices.after.high)}, "
        f"n = {choices.after.of:g}) and had {percent(choices.before.share)} before training."
    )
    if choices.collapsed:
        text += " It is chosen regardless of the candidates: the choice has become constant."
        title = f"The choices of {choices.role} collapsed onto position {choices.position}"
        return Finding("bad", title, text, "one place", choices.role)
    if choices.always:
        text += " It was chosen as often before training: the choice was constant from the start."
        title = f"{choices.role} chose position {choices.position} throughout"
        return Finding("result", title, text, "one place", choices.role)
    text += (
        f" A position with {percent(choices.found_above)} or more is found with probability 0.8."
    )
    return Finding("good", "Choices depend on the candidates", text)


def value_finding(values: Sequence[tuple[int, LoopValue]]) -> Finding:
    """State what the workflow adds to one of its members, by step."""
    step, last = values[-1]
    alone = "its own first attempts" if last.over == "first attempt" else "a candidate at random"
    text = (
        f"At step {step} the team is right in {percent(last.team)} and {alone} in "
        f"{percent(last.alone)} of the same episodes: the rest of the workflow "
    )
    if last.low == last.high == 0:
        text += f"changed none of the {last.n} outcomes."
    else:
        power = f"{points(last.findable)} would be found with probability 0.8"
        more = f", paired over {last.n} problems; {power}"
        text += f"adds {gain_words(last._asdict(), more)}."
    if values[0][0] != step:
        text += f" Before training it added {gain_words(values[0][1]._asdict())}."
    if last.high < 0:
        return Finding("bad", f"The workflow is worse than {alone}", text, "worse")
    if last.low > 0:
        return Finding("good", f"The workflow is better than {alone}", text)
    return Finding("unknown", f"Cannot tell whether the workflow beats {alone}", text)


def death_findings(tests: Sequence[RoleTest], team_gained: bool, pays: bool) -> list[Finding]:
    """Report dead roles, or what the tests would have found."""
    deaths = [_death_finding(test, team_gained, pays) for test in tests if test.positive]
    if deaths:
        return deaths
    same = f"came to give one reply, or copies of another's, to {percent(SAME)} of the problems"
    if pays:
        text = f"None of {len(tests)} tests found a role that is no longer asked, or that {same}."
        return [Finding("good", "No role is dead", text)]
    skills = [test for test in tests if test.kind == "lost skill"]
    parts = [f"{test.role} {points(test.findable or 0)}" for test in skills]
    text = (
        f"None of {len(tests)} tests found a role that lost half of its skill, is no longer asked, "
        f"or {same}; and right answers still come with right candidates"
    )
    if parts:
        text += f"; falls of own accuracy found with probability 0.8: {join_words(parts)} points"
    if any((test.findable or 1.0) > FINE for test in skills):
        text += f". More problems per evaluation (--eval-problems) would show {points(FINE)} points"
        return [Finding("unknown", "Cannot tell whether a role lost its skill", f"{text}.")]
    return [Finding("good", "No role is dead", f"{text}.")]


def _death_finding(test: RoleTest, team_gained: bool, pays: bool) -> Finding:
    title, text = _death_texts(test)
    if pays and test.kind in ("says the same", "a copy"):  # the best reply may be the same
        return Finding("result", title, text)
    if test.kind == "lost skill" and team_gained:
        title += " while the team gained"
    return Finding("bad", title, text, test.kind, test.role)


def _death_texts(test: RoleTest) -> tuple[str, str]:
    role, levels = test.role, f"{percent(test.before)} to {percent(test.after)}"
    change = (
        f"{points(test.change, sign=True)} points, interval {points(test.low, sign=True)} to "
        f"{points(test.high, sign=True)}; n = {test.n}"
    )
    power = "" if test.findable is None else f" {percent(test.findable)} is found with p = 0.8."
    if test.kind in ("never read", "never right"):
        verb = "could be read" if test.kind == "never read" else "were right"
        name = "readable" if test.kind == "never read" else "right"
        return f"{role} was never {name}", (
            f"At no evaluation more than {percent(test.before)} of its replies "
            f"{verb} (at the best, step {test.step}, at most {percent(test.findable or 0)} with "
            "95\u00a0%). It had nothing to learn from: play it first (`flowzoo eval`), and start "
            "from a model that can do its job, or from a warm start (`flowzoo sft`)."
        )
    texts = {
        "lost skill": (
            f"{role} lost its skill",
            f"The own accuracy of {role}, in its first replies, went from {levels} between step "
            f"{test.step}, its best, and the end ({change}; over all roles and evaluations "
            f"together). A fall of {points(test.findable or 0)} points is found with probability "
            "0.8.",
        ),
        "nobody asks": (
            f"{role} is no longer asked",
            f"{role} was asked in {levels} of the episodes, before training and now ({change}).",
        ),
        "says the same": (
            f"{role} gives one reply to {percent(test.after)} of the problems",
            f"Its most frequent first reply went from {levels} of the problems ({change}).{power}",
        ),
        "a copy": (
            f"{role} became a copy of {test.other}",
            "The share of its replies that repeat another agent's word for word went from "
            f"{levels} ({change}).{power}",
        ),
        "a single agent": (
            f"The team became a single agent: {test.other}",
            "Of the team's right answers the share without any right candidate went from "
            f"{levels} ({change}): {test.other} answers without the others.{power} At least "
            f"{percent(SAME)} count as alone.",
        ),
    }
    return texts[test.kind]


def blame_facts(run: RunData, *, fell: bool) -> Facts:
    """Blame for the loss since a step, the peak if `fell`, and the sandbox; or `why` not."""
    steps, scores = run.steps, run.scores
    index = int(scores[:-1].mean(axis=1).argmax()) if fell else 0
    facts = {"step": steps[index], "blame": None, "sandbox": "", "why": ""}
    files = run.transcript_files("eval")
    if not {steps[index], steps[-1]} <= files.keys():
        return {**facts, "why": "the episodes of these evaluations are missing"}
    before, now = (read_episodes(files[step]) for step in (steps[index], steps[-1]))
    try:
        workflow = recorded_workflow(run, usable_tier(run.grading))
        problems = distinct_problems(
            workflow.task, run.settings["eval_split"], run.settings["eval_problems"]
        )
        ids = [problem.id for problem in problems]
        if any([episode["problem"] for episode in part] != ids for part in (before, now)):
            return {**facts, "why": "its problems were played several times, or have changed since"}
        programs = workflow.runs_programs or workflow.task.runs_programs
        most = MOST_BLAMED_PROGRAMS if programs else MOST_BLAMED
        blame = find_blame(workflow, problems[:most], before[:most], now[:most])
        sandbox = workflow.grading()["sandbox"]["tier"] if programs and blame else ""
    except Exception as error:  # the workflow may be a user's
        what = error if isinstance(error, FlowzooError) else f"{type(error).__name__}: {error}"
        return {**facts, "why": f"the episodes could not be played again ({what})"}
    few = "there are too few problems, or this version of the workflow has other prompts"
    return {**facts, "blame": blame, "sandbox": sandbox, "why": "" if blame else few}


def recorded_workflow(run: RunData, sandbox: str = AUTO) -> Workflow:
    """The workflow of a run's record, to play it again; programs run in `sandbox`.

    Raises:
        UsageError: the run has none, or it takes code that this command may not load.
    """
    settings = run.settings
    PERMISSION.note(str(run.folder / "run.json"), settings)
    for word in settings.get("options") or ():
        value = word.partition("=")[2]
        if ":" in value:  # it names code or an address
            PERMISSION.check(value)
    if not settings.get("workflow"):
        raise UsageError("environments and programs of others are not played again")
    options = read_settings(list(settings.get("options") or ()))
    if "sandbox" in options or sandbox != AUTO:
        options["sandbox"] = sandbox
    workflow: Workflow = make_workflow(settings["workflow"], settings.get("task"), **options)
    return workflow


def blame_finding(facts: Facts) -> Finding:
    """State the role whose decisions cost the team the most."""
    blame: Blame | None = facts["blame"]
    if blame is None:
        return Finding("unknown", "The transcripts were not replayed", f"Reason: {facts['why']}.")
    costs = "; ".join(_cost(role) for role in blame.roles)
    text = (
        f"The {blame.problems} episodes of the last evaluation were played again without a model, "
        f"each time with one role's decisions replaced. With its decisions at step "
        f"{facts['step']} the team, at {percent(blame.score)}, would change by: {costs}. "
        "The intervals hold together with 95\u00a0%."
    )
    if facts["sandbox"]:
        text += (
            f" For this {pluralize(blame.programs, 'program')} ran in the sandbox "
            f"({facts['sandbox']}), and {pluralize(blame.reused, 'grade')} came from the episodes."
        )
    strange = [role.role for role in blame.roles if role.strange > STRANGE]
    if strange:
        text += (
            " Not tested, since too many of their replies would be to situations that the "
            f"transcripts do not show: {join_words(strange)}."
        )
    if blame.fidelity < FAITHFUL:
        text += (
            f" Role scores alone reproduce only {percent(blame.fidelity)} of the scores, so the "
            "replay says little here."
        )
    if not blame.blamed:
        return Finding("unknown", "Replaying the transcripts blames no role", text)
    title = f"The decisions of {blame.blamed} cost the most"
    return Finding("bad", title, text, "blamed", blame.blamed)


def _cost(blame: RoleBlame) -> str:
    cost, room = blame.cost, blame.room
    return (
        f"{blame.role} {points(cost.mean, sign=True)} points ({points(cost.low, sign=True)} to "
        f"{points(cost.high, sign=True)}; with an oracle's {points(room.mean, sign=True)})"
    )


def swap_rows(run: RunData) -> list[Facts]:
    """Rows of `flowzoo.baselines.diagnostics.swap`, at the end of the run or by `flowzoo swap`."""
    record = run.summary or {}
    path = run.folder / "swaps.json"
    if "swaps" not in record and path.is_file():
        record = read_json(path)
    return [dict(row) for row in record.get("swaps", ())]


def swap_finding(swap: Facts, measure: str = "accuracy") -> Finding:
    """State the change of the mean score with the policies of two roles exchanged."""
    names = join_words(swap["roles"])
    change = gain_words(swap, f", paired over {swap['n']} problems")
    text = (
        f"With the policies of {names} exchanged, the last evaluation's {measure} is "
        f"{percent(swap['accuracy'])}, which differs by {change}."
    )
    title = f"{names} have specialized" if swap["high"] < 0 else f"No specialization of {names}"
    return Finding("result", title, text)
