"""Messages of a session as processes write them, whole and broken."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.sandbox.runner.wire import MESSAGE, RECORD, find_messages, pack_messages


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=9)), st.integers(0, 99))
def test_messages_are_found_where_they_were_packed(messages, cut):
    data = pack_messages(messages)
    assert [data[start:end] for start, end in find_messages(data, len(data))] == messages
    size = min(cut, len(data))
    whole = [data[start:end] for start, end in find_messages(data, size)]
    assert whole == messages[: len(whole)]
    assert len(pack_messages(whole)) <= size


@pytest.mark.parametrize("length", [0, 2**31, 2**32 - 1])
def test_messages_end_before_a_record_of_an_impossible_length(length):
    data = pack_messages([b"C1", b""]) + RECORD.pack(length) + MESSAGE + b"more"
    assert [data[start:end] for start, end in find_messages(data, len(data))] == [b"C1", b""]


def test_messages_end_before_a_record_of_another_kind():
    data = pack_messages([b"C1"]) + RECORD.pack(1) + b"L" + pack_messages([b"C2"])
    assert len(find_messages(data, len(data))) == 1
