"""The descriptions of the servers: they are true, and requests made of them find no fault."""

import pytest
from front.fuzz import fuzz, statuses

from tools.descriptions import FOLDER, descriptions


@pytest.mark.parametrize("kind", ["serve", "door"])
def test_requests_made_of_a_description_get_no_status_of_the_servers_fault(fronts, kind):
    front = fronts[kind]
    before = statuses(front)
    done = fuzz(front, 15)
    assert done.returncode == 0, done.stdout
    counts = statuses(front)
    assert sum(counts.values()) - sum(before.values()) >= 12
    assert counts[200] > before.get(200, 0)
    assert counts[400] > before.get(400, 0)
    assert not any(status >= 500 and status != 505 for status in counts)


def test_the_published_descriptions_are_what_the_servers_check():
    for name, text in descriptions().items():
        published = (FOLDER / name).read_text("utf-8")
        assert published == text, "python -m tools.descriptions"
