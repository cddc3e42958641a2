"""The verdict `unknown`: the reference answer or the sandbox is at fault, never a reply."""

_PREFIX = "unknown: "


def unknown_status(reason: str) -> str:
    """The status of a verdict that is unknown for this reason."""
    return f"{_PREFIX}{reason}"


def unknown_reason(status: str) -> str:
    """The reason in an unknown status; empty for another status."""
    return status.removeprefix(_PREFIX) if status.startswith(_PREFIX) else ""
