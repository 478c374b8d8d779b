import copy
import gc
import math
import pickle
from typing import Any

import orjson
import pytest

from hermes_rl.model.llamacpp_wire import encoded
from hermes_rl.packed import Packed, packed_floats, packed_ints
from hermes_rl.runlog.encoding import encode


def test_packed_numbers_are_a_sequence_of_the_same_numbers() -> None:
    ids = [3, -100, 150_000, 0]
    packed = packed_ints(ids)
    assert list(packed) == ids
    assert (len(packed), packed[1], packed[-1]) == (4, -100, 0)
    assert 3 in packed
    assert 4 not in packed
    assert (packed.index(150_000), packed.count(3), list(reversed(packed))) == (2, 1, ids[::-1])
    assert max(packed) == 150_000
    assert packed.tolist() == ids
    assert isinstance(packed.tolist(), list)


def test_floats_are_exact_to_the_last_bit() -> None:
    values = [-0.1, -1 / 3, -5e-324, 1.0, -math.pi * 1e-17]
    assert [value.hex() for value in packed_floats(values)] == [value.hex() for value in values]


@pytest.mark.parametrize("same", [[1, 2], (1, 2), packed_ints([1, 2]), packed_floats([1.0, 2.0])])
def test_packed_numbers_equal_any_sequence_of_them_on_either_side(same: object) -> None:
    assert packed_ints([1, 2]) == same
    assert same == packed_ints([1, 2])


@pytest.mark.parametrize("other", [[1], [1, 3], (2, 1), [1, 2, 3], packed_ints([2]), "12", None])
def test_packed_numbers_differ_from_others(other: object) -> None:
    assert packed_ints([1, 2]) != other
    assert other != packed_ints([1, 2])


def test_parts_and_sums_are_packed_too_and_change_nothing() -> None:
    packed, four = packed_ints([1, 2, 3]), [4]
    for made, expected in (
        (packed[1:], [2, 3]),
        (packed[::-1], [3, 2, 1]),
        (packed + four, [1, 2, 3, 4]),
        (packed + packed_ints([5]), [1, 2, 3, 5]),
        (packed + tuple(four), [1, 2, 3, 4]),
    ):
        assert isinstance(made, Packed)
        assert made == expected
    assert packed == [1, 2, 3]


def test_what_is_packed_is_not_copied() -> None:
    packed = packed_floats([0.5])
    assert packed_floats(packed) is packed
    assert packed_floats(packed_ints([1])) == [1.0]


def test_packed_numbers_cannot_be_changed_by_their_source() -> None:
    source = [1, 2]
    packed = packed_ints(source)
    source.append(3)
    assert packed == [1, 2]
    with pytest.raises(TypeError):
        packed[0] = 9  # type: ignore[index]


@pytest.mark.parametrize(
    ("wrong", "error"), [([2**31], OverflowError), ([1.5], TypeError), (["1"], TypeError)]
)
def test_what_is_no_32_bit_integer_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        packed_ints(wrong)


def test_a_long_sequence_is_shown_by_its_beginning() -> None:
    assert repr(packed_ints([1, 2])) == "Packed([1, 2])"
    shown = repr(packed_ints(range(100_000)))
    assert shown == "Packed([0, 1, 2, 3, 4, 5, 6, 7, ...], 100000 numbers)"


def test_packed_numbers_survive_copies_and_pickles() -> None:
    packed = packed_floats([-0.25, 1.0])
    assert pickle.loads(pickle.dumps(packed)) == copy.deepcopy(packed) == packed


def test_packed_numbers_are_written_as_json_lists() -> None:
    value = {"tokens": packed_ints([1, -100]), "logprobs": packed_floats([1.0, -0.1])}
    plain = {"tokens": [1, -100], "logprobs": [1.0, -0.1]}
    assert orjson.loads(encode(value)) == plain
    assert orjson.loads(encode({**value, "text": "\ud800"})) == {**plain, "text": "?"}
    assert orjson.loads(encoded(value)) == plain
    assert orjson.loads(encoded({**value, "text": "\ud800"})) == {**plain, "text": "\ufffd"}


def test_the_garbage_collector_finds_nothing_to_visit_in_packed_numbers() -> None:
    long = packed_ints(range(100_000))
    (values,) = (each for each in gc.get_referents(long) if not isinstance(each, type))
    assert gc.get_referents(values) in ([], [type(values)])
