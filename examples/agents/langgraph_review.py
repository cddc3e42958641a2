"""LangGraph: a graph with a loop. A solver answers again until a reviewer agrees.

flowzoo train --program examples/agents/langgraph_review.py:solve --options at_once=1 --steps 2
"""

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

solver = ChatOpenAI(model="solver")
reviewer = ChatOpenAI(model="reviewer")
ROLES = {"solver": 1, "reviewer": 1}
REVIEW = (
    "{problem}\n\nAnswer:\n{draft}\n\nCheck this answer. Say what is wrong without giving the "
    "solution, then put Correct or Incorrect in \\boxed{{}}."
)
AGAIN = "Review:\n{review}\n\nAnswer the problem again. Put the final answer in \\boxed{{}}."


def draft(state: MessagesState) -> dict:
    """Ask the solver."""
    return {"messages": [solver.invoke(state["messages"])]}


def review(state: MessagesState) -> dict:
    """Ask the reviewer about the last draft."""
    problem = state["messages"][0].text.partition("\n")[0]
    text = REVIEW.format(problem=problem, draft=state["messages"][-1].text)
    return {"messages": [("user", AGAIN.format(review=reviewer.invoke(text).text))]}


def following(state: MessagesState) -> str:
    """The next node: another draft after a rejection, at most three."""
    rejected = "Incorrect" in state["messages"][-1].text
    return "draft" if rejected and len(state["messages"]) < 6 else END


builder = StateGraph(MessagesState).add_node(draft).add_node(review)
builder.add_edge(START, "draft").add_edge("draft", "review")
builder.add_conditional_edges("review", following)
graph = builder.compile()


def solve(problem: str) -> str:
    """The last draft."""
    return graph.invoke({"messages": [("user", problem)]})["messages"][-2].text
