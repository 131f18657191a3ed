"""Build the program of a decoder whose cache is paged: its growing inputs are pools of blocks that sequences share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.backends.device import CompilingDriver
from weft.ir.compiled import CompiledProgram
from weft.ir.packing import release_pages
from weft.ir.program import TensorProgram
from weft.ir.state import StateLayout, StatePair
from weft.logs import CACHE, COMPILING
from weft.passes.dead_code import with_outputs
from weft.passes.hold_state import hold_state
from weft.passes.page_state import page_state
from weft.passes.place_tokens import can_place, place_tokens
from weft.passes.select_rows import select_rows
from weft.passes.trust_indices import trust_indices
from weft.records import dataclass
from weft.runtime.compiled_models import find_program, store_program
from weft.runtime.shared_constants import share_constants
from weft.runtime.stateful_program import stays_in_place

if TYPE_CHECKING:
    from weft.backends.device import Executable
    from weft.compiler import Pipeline
    from weft.runtime.session import Session


@dataclass(frozen=True, slots=True)
class PagedForm:
    """What a paged program computes: rows of an output [batch, tokens, ...], as [selected rows of the batch, ...].

    pairs: the inputs that become pools, and the outputs in which they come back.
    sizes: fixed shapes of inputs, by name, None for sizes that stay dynamic.
    flags: inputs that are constants.
    mask, positions: inputs that the program computes from where the tokens of a sequence begin.
    ids: the input of token ids, which are less than `vocabulary`; positions are less than `length`.
    """

    pairs: tuple[StatePair, ...]
    output: str
    block_size: int
    sizes: tuple[tuple[str, tuple[int | None, ...]], ...] = ()
    flags: tuple[tuple[str, bool], ...] = ()
    mask: str | None = None
    positions: str | None = None
    ids: str | None = None
    vocabulary: int = 0
    length: int = 0


def load_paged_program(session: Session, form: PagedForm) -> Executable | None:
    """Return a program over a paged state, compiled or from the cache.

    None if the device compiles nothing, or an input of the pairs cannot be paged.
    """
    pipeline, whole = session.pipeline, session.whole.program
    if not isinstance(pipeline.driver, CompilingDriver) or any(pair.axis is None for pair in form.pairs):
        return None
    name = f"pages {form!r}"
    program = find_program(pipeline, whole, name)
    if program is not None and program.state is not None:
        CACHE.info("%s: the program with a paged state is taken from the cache", pipeline.file)
        return pipeline.start(program)
    COMPILING.info("%s: a program with a paged state is compiled for %s", pipeline.file, pipeline.driver.name)
    compiled = compile_paged_program(pipeline, form)
    if compiled is None:
        COMPILING.info("%s: its state cannot be paged", pipeline.file)
        return None
    program = store_program(pipeline, compiled, session.signature, whole, name)
    if program is None:  # its arrays are lost
        program = compile_paged_program(pipeline, form)
        assert program is not None
    elif program is compiled and isinstance(whole, CompiledProgram):  # it is not cached
        program = share_constants(compiled, whole)
    for view in pipeline.files.views():
        release_pages(view)
    return pipeline.start(program)


def compile_paged_program(pipeline: Pipeline, form: PagedForm) -> CompiledProgram | None:
    """Compile the program; None if an input cannot be paged."""
    pairs, output = form.pairs, form.output
    names = (output, *(pair.output for pair in pairs))
    axes = {pair.input: pair.axis for pair in pairs if pair.axis is not None}
    program = pipeline.optimise(pipeline.trace(dict(form.sizes) or None, (), names, axes, dict(form.flags)))
    program = select_rows(program, 0)
    values, inputs = dict(zip(names, program.outputs)), {value.name: value for value in program.inputs}
    triples = [(inputs[pair.input], values[pair.output], axes[pair.input]) for pair in pairs]
    held_state = hold_state(program, triples, [values[output]])
    if len(held_state.inputs) < len(pairs):
        return None
    paged = page_state(
        replace(held_state, program=with_outputs(held_state.program, (values[output],))), form.block_size
    )
    if paged is None:
        return None
    program = _compute_inputs(paged.program, form)
    fused = pipeline.fuse(program)
    if not stays_in_place(fused):
        return None
    compiled = pipeline.compile(program, fused)
    assert isinstance(compiled, CompiledProgram)
    return replace(compiled, state=StateLayout((), pages=paged.inputs))


def _compute_inputs(program: TensorProgram, form: PagedForm) -> TensorProgram:
    """Let the program compute its mask and positions, and trust the indices that follow from its inputs."""
    inputs = {value.name: value for value in program.inputs}
    ids = inputs.get(form.ids or "")
    if ids is not None and ids.rank == 2:
        batch, tokens = ids.shape
        names = [
            name if name in inputs and can_place(inputs[name], batch) else None for name in (form.mask, form.positions)
        ]
        program = place_tokens(program, tokens, *names)
    return trust_indices(program, ids, form.vocabulary, form.length)
