"""One model on one device, with one set of weights: its programs for the shapes that it meets, and their runs.

What a device fails at is raised here; `runtime/model.py` goes on to another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union

import numpy as np

from weft.backends.reference.sizes import GuardError, in_order
from weft.errors import (
    DeviceError,
    ExecutionError,
    InputError,
    ModelError,
    OnlyAtRunError,
    OutOfMemoryError,
    WeftError,
)
from weft.ir.program import Guard
from weft.ir.specs import TensorSpec
from weft.ir.tensors import DeviceTensor, owned
from weft.ir.types import OptionalType
from weft.logs import COMPILING, INFO
from weft.quantities import few, shape_text
from weft.records import dataclass
from weft.runtime.arguments import listed, whole_number, whole_shapes
from weft.runtime.inputs import BoundInputs, InputBinder, PlainShapes, Tensor, has_shape
from weft.runtime.named import Outputs
from weft.threads import lock

if TYPE_CHECKING:
    from weft.backends.device import Compiled, Driver, Recorder, Runner, Shortcut
    from weft.ir.graph import OnnxModel
    from weft.ir.narrowed import NarrowedProduct
    from weft.ir.program import TensorProgram
    from weft.ir.specs import Signature
    from weft.plan.program import ProgramPlan
    from weft.runtime.explain import HostStep
    from weft.runtime.memory import Memory
    from weft.runtime.profile import Profile

Array = np.ndarray[Any, Any]
Shapes = Mapping[str, Union[tuple["int | None", ...], None]]  # None: any size, or an input that is left out

REMEMBERED_PROGRAMS = 16  # programs kept for shapes or outputs out of the ordinary
REMEMBERED_SHORTCUTS = 4  # sets of shapes; each keeps a tape alive
# a program is not for these sizes: an assumption fails, what is computed of them has no result or does not fit into 64
# bits, or it depends on data that is needed now
UNFIT = (GuardError, ArithmeticError, OnlyAtRunError)


@dataclass(frozen=True, slots=True)
class PreparedProgram:
    """A program that is ready to run: the names of its inputs in order, what runs it, and what that was made from."""

    inputs: tuple[str, ...]
    runner: Runner
    program: Compiled


class RunRequest(NamedTuple):
    """What a caller wants of a run, checked: inputs, those again in order if they are plain arrays, outputs."""

    bound: BoundInputs
    plain: Sequence[Tensor] | None
    wanted: tuple[str, ...]
    kept: Sequence[str]


class ModelCompiler(Protocol):
    """What makes more of a model when it is asked for; nothing of it is needed to run what was prepared."""

    @property
    def file(self) -> str:
        """What to call the model in messages."""
        ...

    @property
    def driver(self) -> Driver:
        """The device that it compiles for."""
        ...

    @property
    def precision(self) -> str:
        """That it compiles in."""
        ...

    def read(self) -> OnnxModel:
        """The model as its file has it."""
        ...

    def program(self) -> TensorProgram:
        """The optimised program for any shapes."""
        ...

    def specialise(
        self, shapes: Shapes | None, overridden: Sequence[str], outputs: Sequence[str] | None = None
    ) -> TensorProgram:
        """One for given shapes and overridden defaults, and for other outputs than the model's."""
        ...

    def prepare(self, program: TensorProgram) -> PreparedProgram:
        """An optimised program, made to run on the device."""
        ...

    def record(self, program: Compiled) -> Recorder:
        """What runs such a program and tells how that went."""
        ...

    def run_eagerly(self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
        """A run node by node, without a program; gives the model's outputs or others."""
        ...


class Session:
    """A model that is ready to run on a device. Several threads may use it at once."""

    def __init__(self, signature: Signature, whole: PreparedProgram, compiler: ModelCompiler) -> None:
        self.file: str = compiler.file
        self.device: str = compiler.driver.name
        self.signature = signature
        self.inputs: tuple[TensorSpec, ...] = signature.inputs
        self.defaults: tuple[TensorSpec, ...] = signature.defaults
        self._order = tuple(spec.name for spec in signature.inputs)
        self._names = tuple(spec.name for spec in signature.outputs)
        self._rankless = tuple(spec.name for spec in signature.inputs if spec.element and spec.shape is None)
        self.bind: InputBinder = InputBinder(
            signature.inputs, signature.defaults, self.file, compiler.driver.home, compiler.driver.adopt
        )
        self.whole = whole
        self._fixed = _fixed_sizes(signature, whole.program)
        self._compiler = compiler
        self._inner: frozenset[str] = frozenset()  # names of inner values, once one was asked for
        self._programs: OrderedDict[Any, PreparedProgram] = OrderedDict()
        self.shortcuts: dict[PlainShapes | None, Shortcut | None] = {}
        self._lock = lock()

    @property
    def compiler(self) -> ModelCompiler:
        """What makes more of the model."""
        return self._compiler

    @property
    def driver(self) -> Driver:
        return self._compiler.driver

    @property
    def source(self) -> OnnxModel:
        """The model as its file has it."""
        return self._compiler.read()

    @property
    def program(self) -> TensorProgram:
        """The tensor program for any shapes."""
        return self._compiler.program()

    def request(
        self,
        inputs: Mapping[str, Any],
        plain: Sequence[Tensor] | None = None,
        outputs: Sequence[str] | None = None,
        keep: bool | Sequence[str] = False,
    ) -> RunRequest:
        """What a caller wants, checked; `plain` are the inputs in order if they are plain arrays."""
        if not isinstance(inputs, Mapping):
            from weft.runtime.habits import not_by_name

            raise not_by_name(inputs, outputs, self._order, self.file)
        if isinstance(outputs, Mapping) and not inputs:
            from weft.runtime.habits import names_first

            raise names_first(None, self._order, self.file)
        wanted = self._names if outputs is None else self.wanted(outputs)
        kept = () if keep is False else wanted if keep is True else self.wanted(keep, "keep")
        absent = () if plain is not None else self._absent([name for name in inputs if inputs[name] is None])
        return RunRequest(self.bind(inputs, plain, absent), plain, wanted, kept)

    def _absent(self, names: Sequence[str]) -> Sequence[str]:
        """Of inputs that are None, those that the model takes so although they are not of an optional type."""
        kinds = {spec.name: spec.type for spec in self.inputs}
        unusual = [name for name in names if name in kinds and not isinstance(kinds[name], OptionalType)]
        if not unusual:
            return ()
        from weft.opset.sequences import inputs_asked_for

        asked = inputs_asked_for(self.source.graph)
        return [name for name in unusual if name in asked]

    def answer(self, request: RunRequest) -> dict[str, Any]:
        """A run, which may be the first for these shapes."""
        try:
            return self._owned(request, self._run(request))
        except ModelError as error:  # the model loaded: it is this data that an op cannot take
            where = {"file": self.file, "node": error.node, "value": error.value}
            raise ExecutionError(error.problem, hint=error.hint, **where) from error
        except WeftError as error:
            if self._is_the_models(error):
                self._find_fault(request)
            raise error.at(file=self.file) from error.__cause__
        except MemoryError as error:
            hint = "memory() tells what a run needs; use smaller inputs, or allow this process more memory"
            raise OutOfMemoryError("the memory for this run cannot be had", file=self.file, hint=hint) from error

    def _owned(self, request: RunRequest, results: Sequence[Any]) -> dict[str, Any]:
        """Results by name, each the caller's alone."""
        others = list(request.bound.arrays.values())
        found = Outputs()
        for name, result in zip(request.wanted, results):
            own = owned(result, others)
            others.append(own)
            found[name] = self._stay(own) if name in request.kept else own
        return found

    def _is_the_models(self, error: WeftError) -> bool:
        """Whether a run node by node can tell more of an error."""
        if isinstance(error, ExecutionError):
            return True
        return isinstance(error, OutOfMemoryError) and not self.driver.has_memory and error.node is None

    def _stay(self, result: Any) -> Any:
        if isinstance(result, np.ndarray) and result.dtype != object:
            return self.driver.place(result)
        return result

    def explain(self) -> tuple[HostStep, ...]:
        """The steps that did not become native code: the node each came from, and why; empty if all did."""
        from weft.runtime.explain import explain

        return explain(self.whole.program)

    def narrowed(self) -> tuple[NarrowedProduct, ...]:
        """The products that round their operands; empty if none does, whatever the precision allows."""
        from weft.runtime.explain import narrowed_products

        return narrowed_products(self.whole.program)

    def memory(self, shapes: Mapping[str, int | Sequence[int]] | None = None) -> Memory:
        """What a run needs, without running: for sizes of dynamic dims, or shapes of inputs, by name.

        Dynamic dims that are not given get usual sizes, which the answer states.
        """
        from weft.runtime.memory import bind_shapes, summarize

        plan, sizes = self.plan(shapes)
        given, _ = bind_shapes(self.whole.program.inputs, whole_shapes(shapes, self.file), self.file)
        return summarize(plan, sizes, [name for name in sizes if name not in given])

    def plan(self, shapes: Mapping[str, int | Sequence[int]] | None = None) -> tuple[ProgramPlan, dict[str, int]]:
        """The memory plan that `memory` sums up, and the sizes of dynamic dims that it is for."""
        from weft.plan.usual_sizes import usual_sizes
        from weft.runtime.memory import bind_shapes

        program = self.whole.program
        shapes = whole_shapes(shapes, self.file)
        given, clash = bind_shapes(program.inputs, shapes, self.file)
        failed: Exception | None = None
        whole = {name: shape for name, shape in shapes.items() if not isinstance(shape, int)}
        complete = set(whole) >= {value.name for value in program.inputs}
        for sizes in (
            () if clash or (complete and self._rankless) else usual_sizes(program.inputs, program.guards, given)
        ):
            try:
                return self._planned(self.whole, sizes), sizes
            except (GuardError, ArithmeticError, ExecutionError) as error:
                failed = failed or error
        emptied = self._emptied(whole) if complete and not clash else None
        if emptied is not None:  # as a run does it
            with suppress(GuardError, ArithmeticError, ModelError, ExecutionError):
                return self._planned(self._program(emptied, (), self._names), given), {}
        if complete:  # the same, for these very shapes
            with suppress(GuardError, ArithmeticError, ModelError):
                return self._planned(self._program(whole, (), self._names), {}), {}
        hint = "give sizes for which the model makes sense"
        raise InputError(f"there is no plan for these shapes: {failed}", file=self.file, hint=hint)

    def _planned(self, prepared: PreparedProgram, sizes: Mapping[str, int]) -> ProgramPlan:
        try:
            plan = prepared.runner.plan(sizes)
        except OutOfMemoryError as error:
            raise error.at(file=self.file) from None
        if plan is None:
            hint = "choose a device that compiles: see weft.devices()"
            raise DeviceError(f"device {self.device!r} plans no memory", file=self.file, hint=hint)
        return plan

    def check_limit(self, limit: int) -> None:
        """Raise OutOfMemoryError if the model does not fit, as far as that can be told before a run."""
        from weft.ir.program import TensorProgram
        from weft.plan.program import weight_bytes
        from weft.plan.usual_sizes import dynamic_dims

        program = self.whole.program
        if isinstance(program, TensorProgram):
            hint = "choose a device that compiles: see weft.devices()"
            raise DeviceError(f"device {self.device!r} knows no memory_limit", file=self.file, hint=hint)
        weights = weight_bytes(program)
        if weights > limit:
            problem = f"the weights take {weights:,} bytes, more than the memory_limit of {limit:,}"
            raise OutOfMemoryError(problem, file=self.file, hint="allow more")
        if not dynamic_dims(program.inputs):
            self.plan()

    def profile(self, inputs: Mapping[str, Any] | None = None, repeat: int = 10) -> Profile:
        """Run `repeat` times and tell where time and memory go: kernels, threads, the arena."""
        from weft.runtime.profile import profile_runs

        repeat = whole_number(repeat, "repeat", self.file)
        request = self.request({} if inputs is None else inputs)
        self.answer(request)  # what is wrong with the inputs shows here
        given, clash = request.bound
        overridden = tuple(spec.name for spec in self.defaults if spec.name in given)
        shapes = {name: content.shape for name, content in given.items() if has_shape(content)}
        emptied = self._emptied(shapes)
        absent = self._left_out(given)
        ways = (self._ranks(given), *([] if emptied is None else [{**absent, **emptied}]), {**absent, **shapes})
        for sizes in ways[-1:] if clash else ways:
            try:
                prepared = self._program(sizes, overridden, self._names)
                if prepared is self.whole:
                    self._check_fixed(given)
                recorder = self._compiler.record(prepared.program)
                peak = self.driver.calibrate(recorder.threads)
                record = partial(recorder.run, [given[name] for name in prepared.inputs])
                return profile_runs(self.file, self.device, recorder.threads, peak, record, repeat)
            except UNFIT:
                continue
        hint = "sizes that depend on data differ from what the model's graph says"
        raise DeviceError("there are no kernels to time: this runs node by node", file=self.file, hint=hint)

    def wanted(self, outputs: Sequence[str], option: str = "outputs") -> tuple[str, ...]:
        """The names of outputs, or of inner values, that the model has."""
        from weft.ir.graph import find_outputs, value_names

        wanted = tuple(
            name.name if isinstance(name, TensorSpec) else name for name in listed(outputs, option, self.file)
        )
        if all(isinstance(name, str) and (name in self._names or name in self._inner) for name in wanted):
            return wanted
        graph = self.source.graph
        try:
            find_outputs(graph, wanted)
        except InputError as error:
            raise error.at(file=self.file) from None
        self._inner = frozenset(value_names(graph))
        return wanted

    def _run(self, request: RunRequest) -> list[Any]:
        """On the program for any shapes; where its assumptions fail, on one for these shapes; at last node by node.

        The assumption that fails most is that no size is 0: a program in which just these are 0 serves all others.
        """
        (given, clash), plain, wanted, kept = request
        overridden = tuple(spec.name for spec in self.defaults if spec.name in given) if self.defaults else ()
        keep = [number for number, name in enumerate(wanted) if name in kept] if kept else []
        if clash is None:
            try:
                prepared = self._program(self._ranks(given), overridden, wanted)
                if self._fixed and prepared is self.whole:
                    self._check_fixed(given)
                results = self._execute(prepared, given, keep)
            except UNFIT:
                pass
            else:
                if plain is not None and prepared is self.whole:
                    self._remember(given, tuple([array.shape for array in plain]))
                return results
        shapes = {name: content.shape for name, content in given.items() if has_shape(content)}
        emptied = None if clash else self._emptied(shapes)
        if emptied is not None:
            with suppress(*UNFIT, ModelError):
                emptied = {**self._left_out(given), **emptied}
                return self._execute(self._program(emptied, overridden, wanted), given, keep)
        try:
            whole = {**self._left_out(given), **shapes}
            return self._execute(self._program(whole, overridden, wanted), given, keep)
        except UNFIT as error:
            COMPILING.info("%s: this run is computed node by node: %s", self.file, error)
            return self._compiler.run_eagerly(on_host(given), wanted)
        except ModelError as error:
            said = f": {clash}" if clash else ""
            passed = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
            hint = f"given were {passed}; the model takes {', '.join(map(str, self.inputs))}"
            problem = f"the inputs' shapes do not fit together{said}. {error.problem}"
            raise InputError(problem, node=error.node, hint=hint) from error

    def _check_fixed(self, given: Mapping[str, Any]) -> None:
        """Raise GuardError where inputs have other sizes than those that the program was compiled for."""
        for name, axis, size in self._fixed:
            if given[name].shape[axis] != size:
                raise GuardError(Guard(given[name].shape[axis], size, name), given[name].shape[axis], size)

    def _ranks(self, given: Mapping[str, Any]) -> Shapes | None:
        """The ranks of inputs for which the model states none, and inputs that are left out.

        There is a program for each set of them.
        """
        absent = self._left_out(given)
        if not self._rankless and not absent:
            return None
        return {**absent, **{name: (None,) * given[name].ndim for name in self._rankless if name in given}}

    def _left_out(self, given: Mapping[str, Any]) -> Shapes:
        """No shapes, for the inputs that are not given."""
        return {name: None for name in self._order if name not in given} if len(given) < len(self._order) else {}

    def _emptied(self, shapes: Mapping[str, Sequence[int]]) -> Shapes | None:
        """Shapes in which the sizes that are 0 are fixed, and no others; None where there are no such sizes."""
        if not any(0 in shape for shape in shapes.values()):
            return None
        open_ones = {name: (None,) * len(shapes[name]) for name in self._rankless if name in shapes}
        found = {name: tuple(None if size else 0 for size in shape) for name, shape in shapes.items() if 0 in shape}
        return {**open_ones, **found}

    def _find_fault(self, request: RunRequest) -> None:
        """Raise the error of the node that cannot take these inputs, which native code tells no more of."""
        try:
            self._compiler.run_eagerly(on_host(request.bound.arrays), request.wanted)
        except ModelError as error:
            where = {"file": self.file, "node": error.node, "value": error.value}
            raise ExecutionError(error.problem, hint=error.hint, **where) from error
        except WeftError as error:
            raise error.at(file=self.file) from error.__cause__

    def _remember(self, given: Mapping[str, Any], shapes: PlainShapes) -> None:
        """Keep the short way for inputs like these, which the program for any shapes has run."""
        shortcuts, whole = self.shortcuts, self.whole
        if shapes in shortcuts or whole.inputs != self._order:
            return
        if len(shortcuts) >= REMEMBERED_SHORTCUTS:
            shortcuts.clear()
        shortcuts[shapes] = whole.runner.shortcut([given[name] for name in self._order])

    def _execute(self, prepared: PreparedProgram, given: Mapping[str, Any], keep: Sequence[int]) -> list[Any]:
        return prepared.runner.run([given[name] for name in prepared.inputs], keep)

    def _program(self, shapes: Shapes | None, overridden: tuple[str, ...], wanted: tuple[str, ...]) -> PreparedProgram:
        names = self._names
        if shapes is None and not overridden and (wanted is names or wanted == names):
            return self.whole
        key = (None if shapes is None else tuple(sorted(shapes.items())), overridden, wanted)
        with self._lock:
            if key not in self._programs:
                self._tell(shapes, overridden, wanted)
                self._programs[key] = self._compiler.prepare(self._part(shapes, overridden, wanted))
                while len(self._programs) > REMEMBERED_PROGRAMS:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
            return self._programs[key]

    def _tell(self, shapes: Shapes | None, overridden: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        if COMPILING.hears(INFO):
            sizes = (
                "any shapes"
                if shapes is None
                else few(
                    f"{name} {shape_text(size)}" if size is not None else f"{name} left out"
                    for name, size in shapes.items()
                )
            )
            more = f", with {few(overridden)} given" if overridden else ""
            more += "" if wanted == self._names else f", giving {few(wanted)}"
            COMPILING.info("%s: one more program is compiled for %s: for %s%s", self.file, self.device, sizes, more)

    def _part(self, shapes: Shapes | None, overridden: tuple[str, ...], wanted: tuple[str, ...]) -> TensorProgram:
        """The program that gives some outputs; for inner values it is traced with them as outputs."""
        from weft.passes.drop import with_outputs

        if not set(wanted) <= set(self._names):
            return self._compiler.specialise(shapes, overridden, wanted)
        any_shape = shapes is None and not overridden
        whole = self.program if any_shape else self._compiler.specialise(shapes, overridden)
        outputs = dict(zip(self._names, whole.outputs))
        return with_outputs(whole, tuple(outputs[name] for name in wanted))


def _fixed_sizes(signature: Signature, program: Compiled) -> tuple[tuple[str, int, int], ...]:
    """Where a program that was saved for some sizes has one, and the model any: input, axis and size."""
    shapes = {value.name: getattr(value.type, "shape", None) or () for value in program.inputs}
    return tuple(
        (spec.name, axis, size)
        for spec in signature.inputs
        for axis, (dim, size) in enumerate(zip(spec.shape or (), shapes.get(spec.name, ())))
        if isinstance(dim, str) and isinstance(size, int)
    )


def on_host(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs, those on a device copied from there, in the usual order of memory."""
    return {
        name: content.numpy() if isinstance(content, DeviceTensor) else in_order(content)
        for name, content in inputs.items()
    }
