"""Interned objects: unique while referenced, across threads, and through copies and pickles."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

from weft.ir import dims
from weft.ir.dims import Axis, Compound, Dim, Expr, Symbol, symbol
from weft.ir.interned import Interned


class Thing:
    """Something that can be referred to weakly."""


def test_an_object_lives_as_long_as_its_references() -> None:
    table: Interned[Thing] = Interned()
    first = table.add("a", Thing())
    assert table.add("a", Thing()) is first
    entry = table.find("a")
    assert entry is not None
    assert entry() is first
    del first
    gc.collect()
    assert table.find("a") is None
    second = Thing()
    assert table.add("a", second) is second


def test_a_late_callback_does_not_remove_a_new_object() -> None:
    table: Interned[Thing] = Interned()
    missing = table.find("a")
    assert missing is None
    first = table.add("a", Thing())
    entry = table.find("a")
    assert entry is not None
    del first
    second = table.add("a", Thing())
    table._remove(entry)  # as a late callback would
    current = table.find("a")
    assert current is not None
    assert current() is second


def test_threads_get_one_object() -> None:
    table: Interned[Thing] = Interned()
    barrier = threading.Barrier(8)
    current: list[list[Thing]] = []

    def add_all() -> None:
        barrier.wait()
        current.append([table.add(number, Thing()) for number in range(300)])

    threads = [threading.Thread(target=add_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(current) == 8
    assert all(len({id(things[number]) for things in current}) == 1 for number in range(300))


def test_equal_dims_are_one_object() -> None:
    n, m = symbol("n"), symbol("m")
    dim: Dim = (n * 2 + m // 3 + dims.axis(0, n)) % 7
    assert isinstance(dim, Expr)
    assert (dims.axis(0, n) + m // 3 + n + n) % 7 is dim
    assert pickle.loads(pickle.dumps(dim)) is dim
    assert copy.deepcopy(dim) is dim
    assert copy.copy(dim) is dim
    for atom in dims.atoms(dim):
        assert isinstance(atom, (Symbol, Axis, Compound))
        assert pickle.loads(pickle.dumps(atom)) is atom
        assert copy.deepcopy(atom) is atom
    assert symbol("n", 0) is not n
    assert symbol("n", 0) != n
    assert n + 0 is n
    assert n * 1 is n
