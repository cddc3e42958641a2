"""The fronts in processes of their own."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from baselines.report.conftest import plant
from front.fronts import FrontProcess, front_process

KINDS = ("serve", "keyed", "door", "page")


@pytest.fixture(scope="session")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FrontProcess]]:
    """All fronts, with short deadlines."""
    folder = tmp_path_factory.mktemp("fronts")
    plant(folder / "run", items=10, course=(0.4, 0.5), finished=False)
    with ExitStack() as stack:
        yield {kind: stack.enter_context(front_process(kind, folder)) for kind in KINDS}
