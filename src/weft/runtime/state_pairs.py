"""Pair the inputs of a model with the outputs in which they come back: its state.

A pair is found in the program, where an output appends to an input or returns it, and by the names that exporters use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.errors import InputError, short_repr
from weft.ir.program import Concat, Map, TensorProgram, Value
from weft.ir.scalar import identity_indices, loads
from weft.quantities import join_few

if TYPE_CHECKING:
    from weft.ir.specs import TensorSpec

Pairs = dict[str, str]  # inputs and their outputs

_RENAMED = (  # patterns in names of inputs, and what exporters write in the names of their outputs
    (r"\bpast_key_values\b", ("present", "present_key_values")),
    (r"(?<![a-z])past(?![a-z])", ("present", "new", "next")),
    (r"(?<![a-z])in(?:put)?(?![a-z])", ("out", "output")),
    (r"(?<![a-z])(?:prev(?:ious)?|old|initial|init)(?![a-z])", ("next", "new", "final")),
    (r"(?<=\d)i$", ("o",)),
    (r"(?<=[a-z])_?0$", ("n", "_n", "1", "_1")),
)
_AFFIXES = (
    *("{}n", "{}N", "{}_n", "{}_out", "{}_output", "{}_new", "{}_next", "{}.1", "{}_1", "{}o", "{}_o"),
    *("new_{}", "next_{}", "out_{}", "output_{}", "updated_{}", "final_{}", "n{}", "{}.out", "out.{}"),
)


def find_pairs(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], program: TensorProgram, file: str) -> Pairs:
    """Find the state of a model; InputError if it has none."""
    values = dict(zip((spec.name for spec in outputs), program.outputs))
    pairs: Pairs = {}
    for spec in inputs:
        names = [name for name in list_output_names(spec.name) if name in values and name not in pairs.values()]
        fitting = [name for name in names if _fit(spec, next(o for o in outputs if o.name == name))]
        if fitting:
            pairs[spec.name] = fitting[0]
    for source, name in _find_appending(program, values):
        if source not in pairs and name not in pairs.values():
            pairs[source] = name
    if pairs:
        return pairs
    takes = join_few((spec.name for spec in inputs), 6)
    gives = join_few((spec.name for spec in outputs), 6)
    raise InputError(
        f"the model has no state that weft can find: none of its inputs ({takes}) comes back as an output ({gives})",
        file=file,
        hint='pass the pairs: model.state(pairs={"input": "output"})',
    )


def check_pairs(
    pairs: Mapping[str, str], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], file: str
) -> Pairs:
    """Check pairs that a user passes; InputError for names that the model lacks, or that do not fit together."""
    if not isinstance(pairs, Mapping) or not pairs:
        raise InputError(f"pairs must be a dict of inputs and outputs by name, not {short_repr(pairs)}", file=file)
    by_name = {spec.name: spec for spec in inputs}
    results = {spec.name: spec for spec in outputs}
    for source, name in pairs.items():
        for user_name, specs, kind in ((source, by_name, "input"), (name, results, "output")):
            if user_name not in specs:
                hint = f"it has {join_few(specs, 8)}"
                raise InputError(f"pairs: the model has no {kind} {short_repr(user_name)}", file=file, hint=hint)
        if not _fit(by_name[source], results[name]):
            problem = f"pairs: input {by_name[source]} and output {results[name]} differ in type or rank"
            raise InputError(problem, file=file, hint="the output must be what the next run takes as the input")
    if len(set(pairs.values())) < len(pairs):
        raise InputError("pairs: two inputs come back as the same output", file=file)
    return dict(pairs)


def list_output_names(name: str) -> Iterator[str]:
    """List the names that exporters give to the output in which an input comes back, likeliest first."""
    for pattern, replacements in _RENAMED:
        for replacement in replacements:
            renamed = re.sub(pattern, replacement, name, flags=re.IGNORECASE)
            if renamed not in (name, "out", "output"):  # most models have an "input" and an "output"
                yield renamed
    for affix in _AFFIXES:
        yield affix.format(name)


def _fit(source: TensorSpec, output: TensorSpec) -> bool:
    """Whether an output can be the next input: tensors of one type, and of sizes that may be equal."""
    if source.element is None or source.element is not output.element or source.shape is None:
        return False
    if output.shape is None:
        return True
    return len(source.shape) == len(output.shape) and all(
        left == right or isinstance(left, str) or isinstance(right, str)
        for left, right in zip(source.shape, output.shape)
    )


def _find_appending(program: TensorProgram, outputs: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """Yield inputs and outputs where the output is a concatenation with the input first, or a map that keeps it."""
    makers = {value: step for step in program.steps for value in step.results}
    inputs = set(program.inputs)
    for name, output in outputs.items():
        step = makers.get(output)
        if step is None or not output.has_shape:
            continue
        sources: list[Value] = []
        match step.primitive:
            case Concat():
                sources = [step.operands[0]]
            case Map(expression):
                numbers = {load.operand for load in loads(expression) if load.indices == identity_indices(output.shape)}
                sources = [step.operands[number] for number in sorted(numbers)]
        grown = [
            value
            for value in sources
            if value in inputs and value.dtype is output.dtype and value.rank == output.rank
            if value.shape != output.shape
        ]
        if len(grown) == 1:
            yield grown[0].name, name
