"""Build the program of a model that keeps a state: its growing inputs are buffers, which runs extend in place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.backends.device import CompilingDriver
from weft.ir.compiled import CompiledProgram
from weft.ir.groups import HostGroup, section_values, stretches
from weft.ir.packing import release_pages
from weft.ir.program import Scatter
from weft.ir.state import StateLayout, StatePair
from weft.logs import CACHE, COMPILING
from weft.passes.dead_code import with_outputs
from weft.passes.hold_state import hold_state
from weft.runtime.compiled_models import find_program, store_program
from weft.runtime.shared_constants import share_constants
from weft.threads import make_lock

if TYPE_CHECKING:
    from weft.backends.device import DeviceProgram, Executable
    from weft.compiler import Pipeline
    from weft.ir.groups import FusedProgram
    from weft.ir.program import TensorProgram
    from weft.ir.specs import Signature


MAX_PROGRAMS = 16  # in memory
Key = tuple[tuple[StatePair, ...], tuple[str, ...], tuple[str, ...]]  # pairs, outputs, overridden defaults


class StatefulPrograms:
    """The programs of one session that hold a state, loaded on its device. Several threads may use it at once."""

    def __init__(self, signature: Signature, whole: DeviceProgram, pipeline: Pipeline) -> None:
        """`whole` is the model's program without a state, whose weights the others share."""
        self._signature = signature
        self._whole = whole
        self._pipeline = pipeline
        self._loaded: OrderedDict[Key, Executable | None] = OrderedDict()
        self._lock = make_lock()

    def find(
        self, pairs: tuple[StatePair, ...], outputs: tuple[str, ...], overridden: tuple[str, ...]
    ) -> Executable | None:
        """Return the program with these outputs; None if the device compiles nothing, or no input can be held."""
        key = pairs, outputs, overridden
        with self._lock:
            if key not in self._loaded:
                program = self._find_or_compile(key)
                self._loaded[key] = None if program is None else self._pipeline.start(program)
                while len(self._loaded) > MAX_PROGRAMS:
                    self._loaded.popitem(last=False)
            return self._loaded[key]

    def _find_or_compile(self, key: Key) -> CompiledProgram | None:
        pipeline, name = self._pipeline, f"state {key!r}"
        if not isinstance(pipeline.driver, CompilingDriver) or all(pair.axis is None for pair in key[0]):
            return None
        program = find_program(pipeline, self._whole, name)
        if program is not None and program.state is not None:
            CACHE.info("%s: the program that holds a state is taken from the cache", pipeline.file)
            return program
        COMPILING.info("%s: a program that holds a state is compiled for %s", pipeline.file, pipeline.driver.name)
        compiled = compile_stateful_program(pipeline, *key)
        if compiled is None:
            COMPILING.info("%s: its state is copied in every run: no output appends to an input", pipeline.file)
            return None
        program = store_program(pipeline, compiled, self._signature, self._whole, name)
        if program is None:  # its arrays are lost
            program = compile_stateful_program(pipeline, *key)
        elif program is compiled and isinstance(self._whole, CompiledProgram):  # it is not cached
            program = share_constants(compiled, self._whole)
        for view in pipeline.files.views():
            release_pages(view)
        return program


def compile_stateful_program(
    pipeline: Pipeline, pairs: Sequence[StatePair], outputs: Sequence[str], overridden: Sequence[str] = ()
) -> CompiledProgram | None:
    """Compile a program with these outputs; None if no input can be held."""
    growing = [pair for pair in pairs if pair.axis is not None]
    while growing:
        program, layout = _trace(pipeline, pairs, growing, outputs, overridden)
        names = {entry.name for entry in layout.inputs}
        if len(names) == len(growing):
            fused = pipeline.fuse(program)
            if not stays_in_place(fused):
                return None
            compiled = pipeline.compile(program, fused)
            assert isinstance(compiled, CompiledProgram)
            return replace(compiled, state=layout)
        growing = [pair for pair in growing if pair.input in names]
    return None


def _trace(
    pipeline: Pipeline,
    pairs: Sequence[StatePair],
    growing: Sequence[StatePair],
    outputs: Sequence[str],
    overridden: Sequence[str],
) -> tuple[TensorProgram, StateLayout]:
    """Trace the program in which these inputs grow in place where that is possible."""
    names = tuple(dict.fromkeys((*outputs, *(pair.output for pair in pairs))))
    axes = {pair.input: pair.axis for pair in growing if pair.axis is not None}
    program = pipeline.optimise(pipeline.trace(None, overridden, names, axes))
    values = dict(zip(names, program.outputs))
    inputs = {value.name: value for value in program.inputs}
    triples = [(inputs[pair.input], values[pair.output], axes[pair.input]) for pair in growing]
    state = hold_state(program, triples, [values[name] for name in outputs])
    held_names = {entry.name for entry in state.inputs}
    carried = tuple(pair for pair in pairs if pair.input not in held_names)
    results = [values[name] for name in (*outputs, *(pair.output for pair in carried))]
    layout = StateLayout(state.inputs, carried, tuple(state.lengths))
    return with_outputs(state.program, (*results, *state.lengths.values())), layout


def stays_in_place(fused: FusedProgram) -> bool:
    """Whether everything that reads a buffer after its update is in the same section on the device."""
    for on_device, groups in stretches(fused.groups):
        _, outputs = section_values(fused.program, groups)
        for group in groups:
            if isinstance(group, HostGroup) and not all(map(stays_in_place, group.bodies)):
                return False
            updates = [s for s in group.steps if isinstance(s.primitive, Scatter) and s.primitive.in_place]
            if updates and (not on_device or isinstance(group, HostGroup) or set(outputs).intersection(group.results)):
                return False
    return True
