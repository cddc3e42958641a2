import random

import pytest

from flowzoo.agents.policy import Request, Sampling, canonical, reply_cap
from flowzoo.envs.text import encodable
from flowzoo.errors import UsageError


def test_a_request_can_tighten_the_cap_but_not_loosen_it():
    def cap(local: int | None) -> int:
        request = Request(("k",), "a_0", "a", [], max_tokens=local)
        return reply_cap(request, Sampling(max_tokens=8))

    assert [cap(None), cap(3), cap(99)] == [8, 3, 8]
    with pytest.raises(UsageError, match="at least 1"):
        cap(0)


def test_keys_of_mixed_parts_have_one_order():
    keys = [(0, "p", 10), (0, "p", 9), (0, 5, "x"), ("0", "p", 9), (0, "p"), (0, "q", 1)]
    ordered = sorted(keys, key=canonical)
    assert ordered == [
        (0, 5, "x"), (0, "p"), (0, "p", 9), (0, "p", 10), (0, "q", 1), ("0", "p", 9)
    ]  # fmt: skip
    random.Random(1).shuffle(keys)
    assert sorted(keys, key=canonical) == ordered


def test_only_lone_surrogates_are_changed():
    assert encodable("π 日本 🙂 \x00") == "π 日本 🙂 \x00"
    assert encodable("a\ud83db\udc00") == "a\ufffdb\ufffd"
