"""LangGraph: a graph with a loop. A solver answers again until a reviewer agrees.

flowzoo train --program examples/agents/langgraph_review.py:solve --options at_once=1 --steps 2
"""

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

ROLES = {"solver": 1, "reviewer": 1}
REVIEW = (
    "{problem}\n\nAnswer:\n{draft}\n\nCheck this answer. Say what is wrong without giving the "
    "solution, then put Correct or Incorrect in \\boxed{{}}."
)
AGAIN = "Review:\n{review}\n\nAnswer the problem again. Put the final answer in \\boxed{{}}."


def solve(problem: str, base_url: str, api_key: str) -> str:
    """The last draft."""
    door = {"base_url": base_url, "api_key": api_key}
    solver, reviewer = (ChatOpenAI(model=name, **door) for name in ROLES)

    def draft(state: MessagesState) -> dict:
        return {"messages": [solver.invoke(state["messages"])]}

    def review(state: MessagesState) -> dict:
        text = REVIEW.format(problem=problem.partition("\n")[0], draft=state["messages"][-1].text)
        return {"messages": [("user", AGAIN.format(review=reviewer.invoke(text).text))]}

    def following(state: MessagesState) -> str:
        rejected = "Incorrect" in state["messages"][-1].text
        return "draft" if rejected and len(state["messages"]) < 6 else END

    graph = StateGraph(MessagesState).add_node(draft).add_node(review)
    graph.add_edge(START, "draft").add_edge("draft", "review")
    graph.add_conditional_edges("review", following)
    return graph.compile().invoke({"messages": [("user", problem)]})["messages"][-2].text
