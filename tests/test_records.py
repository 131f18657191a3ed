"""weft's `dataclass` makes the same classes as the standard one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from weft import records
from weft.saved.manifest import Block


def _plain(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True, slots=True)
    class Plain:
        """A record."""

        name: str
        sizes: tuple[int, ...] = ()
        facts: dict[str, int] = field(default_factory=dict, hash=False)
        hidden: int = field(default=3, compare=False, repr=False)

        @property
        def count(self) -> int:
            return len(self.sizes)

    return Plain


def _open(dataclass: Callable[..., Any]) -> type:
    @dataclass
    class Open:
        name: str
        size: int = 2

        def __post_init__(self) -> None:
            self.size += 1

    return Open


def _by_name(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True, kw_only=True)
    class ByName:
        name: str = "a"
        size: int

    return ByName


def _derived(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True, slots=True)
    class Base:
        name: str
        size: int = 1

    @dataclass(frozen=True, slots=True)
    class Derived(Base):
        size: int = 7
        more: float = 0.5

    return Derived


def _with_class_variable(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True, slots=True)
    class Counted:
        name: str
        total: ClassVar[int] = 4

    return Counted


MAKERS = (_plain, _open, _by_name, _derived, _with_class_variable)


@pytest.mark.parametrize("make", MAKERS)
def test_records_equal_standard_dataclasses(make: Callable[..., type]) -> None:
    ours, standard = make(records.dataclass), make(dataclasses.dataclass)
    for each in (ours, standard):
        assert dataclasses.is_dataclass(each)
    assert [
        (f.name, f.type, f.default, f.default_factory, f.init, f.repr, f.compare, f.hash, f.kw_only)
        for f in dataclasses.fields(ours)
    ] == [
        (f.name, f.type, f.default, f.default_factory, f.init, f.repr, f.compare, f.hash, f.kw_only)
        for f in dataclasses.fields(standard)
    ]
    assert ours.__match_args__ == standard.__match_args__
    if sys.version_info >= (3, 11):  # before, the standard one repeated the slots of the base
        assert getattr(ours, "__slots__", None) == getattr(standard, "__slots__", None)
    arguments = {"name": "x", "size": 5} if make is _by_name else {"name": "x"}
    one, other = ours(**arguments), standard(**arguments)
    assert repr(one) == repr(other).replace("standard", "ours")
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert one == ours(**arguments) != ours(**{**arguments, "name": "y"})
    assert copy.copy(one) == one
    assert dataclasses.asdict(dataclasses.replace(one, name="z")) == dataclasses.asdict(
        dataclasses.replace(other, name="z")
    )
    assert hasattr(one, "__dict__") == hasattr(other, "__dict__")
    if make is not _open:
        assert hash(one) == hash(ours(**arguments))
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.name = "w"  # type: ignore[attr-defined]


def test_signature_of_keyword_only_records() -> None:
    ours, standard = (_by_name(dataclass) for dataclass in (records.dataclass, dataclasses.dataclass))
    assert inspect.signature(ours).parameters == inspect.signature(standard).parameters


def test_mutable_defaults_are_rejected() -> None:
    for dataclass in (records.dataclass, dataclasses.dataclass):
        with pytest.raises(ValueError, match="mutable default"):

            @dataclass
            class Wrong:
                items: list[int] = []  # noqa: RUF012


def test_records_can_be_pickled() -> None:
    block = Block(1, 2, "a")
    assert pickle.loads(pickle.dumps(block)) == block
