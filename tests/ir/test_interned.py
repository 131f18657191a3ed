"""One object for each value: while somebody holds it, for all threads, and through copies and pickles."""

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


def test_kept_as_long_as_held() -> None:
    table: Interned[Thing] = Interned()
    first = table.keep("a", Thing())
    assert table.keep("a", Thing()) is first
    entry = table.find("a")
    assert entry is not None
    assert entry() is first
    del first
    gc.collect()
    assert table.find("a") is None
    second = Thing()
    assert table.keep("a", second) is second


def test_another_object_after_the_first_has_gone_is_not_forgotten_with_it() -> None:
    table: Interned[Thing] = Interned()
    gone = table.find("a")
    assert gone is None
    first = table.keep("a", Thing())
    entry = table.find("a")
    assert entry is not None
    del first
    second = table.keep("a", Thing())
    table._forget(entry)  # as a late callback would
    found = table.find("a")
    assert found is not None
    assert found() is second


def test_threads_get_one_object() -> None:
    table: Interned[Thing] = Interned()
    barrier = threading.Barrier(8)
    found: list[list[Thing]] = []

    def keep() -> None:
        barrier.wait()
        found.append([table.keep(number, Thing()) for number in range(300)])

    threads = [threading.Thread(target=keep) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(len({id(things[number]) for things in found}) == 1 for number in range(300))


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
