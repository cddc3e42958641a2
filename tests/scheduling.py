"""Distribution of the tests over the processes of pytest-xdist."""

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

SECONDS = {
    "ray": 300, "config": 40, "real-model": 120, "browser": 90, "test_conformance.py": 80,
    "serve_command": 60, "test_data_parallel.py": 50,
    "test_notebooks.py": 50, "test_scripts.py": 60, "trainer": 40, "damage": 40,
    "test_hf.py": 25, "test_matrix.py": 40, "test_probe.py": 40,
    "test_eval_endpoints.py": 40, "test_vocabulary.py": 40, "test_logps.py": 40,
    "test_algorithms_run.py": 30, "test_docs.py": 30, "test_torchrun.py": 30,
    "test_pages.py": 50, "test_trust.py": 40, "test_cli.py": 40, "test_waits.py": 40,
    "test_eval_command.py": 30, "test_docker_boxes.py": 30,
    "test_humaneval-namespaces": 30, "code-problems": 30,
    "pairs-code": 30, "test_matrix_smoke.py": 25, "env_run": 25, "test_by_policy_run.py": 100,
    "test_new_command.py": 50, "test_families.py": 25,
    "test_tool_planner.py": 20, "test_backend.py": 80, "test_schedule.py": 20, "test_grace.py": 15,
    "test_release.py": 15, "attacks": 12,
}  # fmt: skip
"""Groups and files whose tests together take long on a busy machine; a guess is enough.

Attacks take 120 s, but have limits of half a second: they wait until the tests of vLLM have ended.
"""
_TEST_SECONDS = 0.05


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
        name = scope.rpartition("/")[2].partition("+")[0]
        return SECONDS.get(name, _TEST_SECONDS * len(self.workqueue[scope]))
