"""How many neighbouring elements of its buffers a kernel reads or writes at once: they start at a multiple of that."""

from __future__ import annotations

from weft.ir.kernel import FetchRun, Kernel, MoveRun, PutRun, View, inner_bodies


def runs_of(kernel: Kernel) -> dict[str, int]:
    """The most for each buffer that has runs at all."""
    found: dict[str, int] = {}
    homes: dict[str, str] = {}
    pending = list(kernel.body)
    while pending:
        statement = pending.pop(0)
        match statement:
            case FetchRun(registers, name):
                count = len(registers)
            case PutRun(name, _, values):
                count = len(values)
            case MoveRun(count=count, buffer=name):
                pass
            case View(view, buffer):
                homes[view] = homes.get(buffer, buffer)
                continue
            case _:
                pending = [*(inner for body in inner_bodies(statement) for inner in body), *pending]
                continue
        home = homes.get(name, name)
        found[home] = max(found.get(home, 0), count)
    return found
