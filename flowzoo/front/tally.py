"""Counts of a front, as Prometheus reads them."""

from collections import Counter
from collections.abc import Mapping


class Tally:
    """Numbers and times of requests, without anything that a client sent."""

    def __init__(self) -> None:
        self.statuses, self.drops, self.seconds = Counter[int](), Counter[str](), 0.0

    def add(self, status: int, seconds: float = 0.0) -> None:
        """Count a request."""
        self.statuses[status] += 1
        self.seconds += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """All counts, and the current values of `gauges`."""
        lines = ["# TYPE flowzoo_http_requests_total counter"]
        for status, count in sorted(self.statuses.items()):
            lines.append(f'flowzoo_http_requests_total{{status="{status}"}} {count}')
        lines.append("# TYPE flowzoo_http_dropped_connections_total counter")
        for reason, count in sorted(self.drops.items()):
            lines.append(f'flowzoo_http_dropped_connections_total{{reason="{reason}"}} {count}')
        lines.append("# TYPE flowzoo_http_request_seconds summary")
        lines.append(f"flowzoo_http_request_seconds_sum {self.seconds:.6f}")
        lines.append(f"flowzoo_http_request_seconds_count {self.statuses.total()}")
        for name, value in gauges.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE flowzoo_{name} {kind}", f"flowzoo_{name} {value:g}"]
        return "\n".join(lines) + "\n"
