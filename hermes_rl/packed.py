"""Long sequences of numbers in storage that the garbage collector has nothing to do with.

A list is visited element by element in every full collection, on whatever callback of the event
loop happens to start one. Eight groups of 8 x 32,768 token ids, masks and log-probabilities are six
million elements: 25 ms. A :class:`Packed` is one object that holds a C array; it also takes a
quarter to an eighth of the memory. Values are exact: 32-bit integers, 64-bit floats.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

__all__ = ["Packed", "packed_floats", "packed_ints"]

T = TypeVar("T", int, float)

_INTS = "i"
_FLOATS = "d"
_SHOWN = 8
"""Numbers in ``repr``; a sequence may have a hundred thousand."""


class Packed(Sequence[T]):
    """An immutable sequence of numbers. Equals any sequence of the same numbers.

    Slices and sums with other sequences are packed as well; ``tolist()`` makes a list, for what
    insists on one (``json.dumps``, in-place changes).

    Args:
        values: Numbers.
        typecode: Of :mod:`array`: ``i`` or ``d``.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[T], typecode: str) -> None:
        self._values: array[Any] = array(typecode, values)

    def __len__(self) -> int:
        """Return how many numbers there are."""
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Packed[T]: ...

    def __getitem__(self, index: int | slice) -> T | Packed[T]:
        """Return one number, or a packed part."""
        if isinstance(index, slice):
            return _holding(self._values[index])
        number: T = self._values[index]
        return number

    def __iter__(self) -> Iterator[T]:
        """Iterate at the speed of a list."""
        return iter(self._values)

    def __contains__(self, value: object) -> bool:
        """Say whether a number is there."""
        return value in self._values

    def __eq__(self, other: object) -> bool:
        """Compare with any list, tuple or packed sequence."""
        if isinstance(other, Packed):
            return self._values == other._values
        if isinstance(other, list | tuple):
            return len(other) == len(self) and self.tolist() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment] # it equals lists, which have none

    def __add__(self, other: Iterable[T]) -> Packed[T]:
        """Return these numbers followed by others."""
        return _holding(self._values + _array_of(other, self._values.typecode))

    def __repr__(self) -> str:
        """Show the first numbers and how many there are."""
        if len(self) <= _SHOWN:
            return f"Packed({self.tolist()})"
        shown = ", ".join(map(repr, self._values[:_SHOWN]))
        return f"Packed([{shown}, ...], {len(self)} numbers)"

    def count(self, value: Any) -> int:
        """Return how often a number is there."""
        return self._values.count(value)

    def tolist(self) -> list[T]:
        """Return a list of the numbers."""
        return self._values.tolist()


def packed_ints(values: Iterable[int]) -> Packed[int]:
    """Pack integers; what is packed already is returned as it is.

    Raises:
        OverflowError: One does not fit into 32 bits.
        TypeError: One is no integer.
    """
    return _packed(values, _INTS)


def packed_floats(values: Iterable[float]) -> Packed[float]:
    """Pack floats; what is packed already is returned as it is.

    Raises:
        TypeError: One is no number.
    """
    return _packed(values, _FLOATS)


def _packed(values: Iterable[T], typecode: str) -> Packed[T]:
    if isinstance(values, Packed) and values._values.typecode == typecode:
        return values
    return Packed(values, typecode)


def _array_of(values: Iterable[Any], typecode: str) -> array[Any]:
    if isinstance(values, Packed) and values._values.typecode == typecode:
        return values._values
    return array(typecode, values)


def _holding(values: array[Any]) -> Packed[Any]:
    """Return a sequence of an array that nobody else changes."""
    made: Packed[Any] = Packed.__new__(Packed)
    made._values = values
    return made
