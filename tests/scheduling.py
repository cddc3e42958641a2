"""Distribution of the tests over the processes of pytest-xdist."""

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

SECONDS: dict[str, float] = {"ray": 400}
"""Groups and files that take long, all of their tests together; a guess is enough."""
_TEST_SECONDS = 0.1


class FileScheduling(LoadGroupScheduling):
    """Give a process a group of tests or the rest of a file, longest first.

    With `LoadGroupScheduling` each process makes the fixtures and caches of a file for itself, and
    what takes long may come last. It also spends time on each test that grows with their number.
    """

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = max(self.workqueue, key=self._seconds)
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)

    def _seconds(self, scope: str) -> float:
        return SECONDS.get(scope, _TEST_SECONDS * len(self.workqueue[scope]))
