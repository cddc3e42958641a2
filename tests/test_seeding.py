"""Keys and streams."""

from flowzoo.seeding import key_digest, key_int, key_rng, nth


def test_keys_are_told_apart_by_their_parts_and_types():
    keys = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), (1, "1"), ("1", 1), (11,), (1, 1)]
    assert len({key_digest(*key) for key in keys}) == len(keys)


def test_keys_do_not_depend_on_the_process():
    assert key_int("split", "Compute 1+1.") == 0x73EFEFB3CC07DCD3
    assert key_rng("x", 1).random() == key_rng("x", 1).random()


def test_nth_is_splitmix64():
    # The reference sequence of seed 0: first three outputs of the published generator.
    assert [nth(0, number) for number in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
