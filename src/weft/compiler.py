"""The stages of a compilation, in order: read, trace, optimise, fuse, build, compile, start.

    ModelFiles -read-> Graph -trace-> TensorProgram -optimise-> TensorProgram -fuse-> FusedProgram
        -build-> Sections -compile-> CompiledProgram -start-> Executable

A `Pipeline` compiles one model for one device. A load calls it (`runtime/open_session.py`) unless the compiled model is
cached; a session calls it when a run needs a program for other shapes. The executable plans memory for the sizes of
each run. Imports inside methods keep the compiler out of loads from the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.backends.device import CompilingDriver, DeviceProgram, Executable, RunOptions, TunableDriver
from weft.cache.entries import CachedModel
from weft.errors import ExecutionError, InvalidModelError, OnlyAtRunError, WeftError
from weft.ir.packing import release_pages
from weft.ir.program import TensorProgram
from weft.ir.specs import signature
from weft.runtime.devices import driver
from weft.runtime.dump import StageDump
from weft.runtime.memory import bind_sizes
from weft.runtime.progress import expected_seconds
from weft.threads import make_lock

if TYPE_CHECKING:
    from weft.backends.device import Compilation, Driver, Recorder
    from weft.backends.reference.interpret import Interpreter
    from weft.ir.graph import Graph, OnnxModel
    from weft.ir.groups import FusedProgram
    from weft.ir.work import Section
    from weft.runtime.model_files import ModelFiles
    from weft.runtime.options import LoadOptions
    from weft.runtime.progress import Stages
    from weft.runtime.revise import KnownWorks


class Pipeline:
    """The stages of one model's compilation for one device."""

    def __init__(
        self, files: ModelFiles, options: LoadOptions, device: str, progress: Stages, precision: str | None = None
    ) -> None:
        """`precision` overrides that of the options."""
        self.files = files
        self.file = files.file
        self.options = options
        self.precision = precision or options.precision
        self.driver = _apply_tuning(driver(device), options)
        self.progress = progress
        self.dump = StageDump(None if options.dump is None else Path(options.dump))
        self.lock = make_lock()  # guards `_program` and `skeleton`
        self._program: TensorProgram | None = None
        self.traced: tuple[TensorProgram, FusedProgram | None] | None = None  # from choosing a device; used once
        self.skeleton: FusedProgram | None = None  # this and `known_works` are for runtime/revise.py
        self.known_works: KnownWorks | None = None

    @property
    def compiling_driver(self) -> CompilingDriver:
        """The driver, which must compile kernels."""
        assert isinstance(self.driver, CompilingDriver)
        return self.driver

    # -- the stages --------------------------------------------------------------------------------------------------

    def read(self) -> OnnxModel:
        """ModelFiles -> Graph; with the option `outputs`, only the nodes that compute them."""
        from weft.ir.graph import with_outputs

        model = self.files.model()
        if self.options.outputs is None:
            return model
        return replace(model, graph=with_outputs(model.graph, self.options.outputs))

    def trace(
        self,
        shapes: Mapping[str, Sequence[int | str | None] | None] | None = None,
        overridden: Sequence[str] = (),
        outputs: Sequence[str] | None = None,
        state_axes: Mapping[str, int] | None = None,
        flags: Mapping[str, bool] | None = None,
    ) -> TensorProgram:
        """Graph -> TensorProgram, for any input shapes or for these, with the model's outputs or other values.

        `state_axes`: the inputs whose memory a state holds, and the axis along which each grows. `flags`: inputs that
        are constants, such as the one that chooses the branch of a merged decoder.
        """
        from weft.ir.graph import with_constant_inputs
        from weft.ir.printing import format_model
        from weft.opset.equal_sizes import find_equal_sizes
        from weft.opset.lower import lower

        graph = self._graph(outputs)
        if flags:
            graph = with_constant_inputs(graph, {name: np.array([flag]) for name, flag in flags.items()})
        self.progress.expect(expected_seconds(self.files.opened.size, len(graph.nodes)))
        self.dump.restart()
        self.dump.stage("graph", lambda: format_model(self.read()))
        self.progress.stage("tracing")
        trace = partial(lower, graph, self._evaluator, sizes=shapes, overridden=overridden, state_axes=state_axes)
        program = trace(progress=self.progress.update)
        if shapes is not None and not state_axes and (equal_sizes := find_equal_sizes(program)):
            program = trace(equal_sizes=equal_sizes)
        self.dump.stage("traced", lambda: program)
        return program

    def optimise(self, program: TensorProgram) -> TensorProgram:
        """TensorProgram -> TensorProgram, by all passes; verify it before and after each."""
        from weft.ir.verify import verify
        from weft.passes import PIPELINE

        verified = verify(program)
        for number, apply in enumerate(PIPELINE):
            self.progress.stage("simplifying", number / len(PIPELINE))
            program = apply(program, self._evaluator)
            verified = verify(program, verified)
            self.dump.stage(apply.__name__, lambda: program)  # noqa: B023 (called at once)
        return program

    def fuse(self, program: TensorProgram) -> FusedProgram:
        """TensorProgram -> FusedProgram: groups of steps that share a kernel, and the layouts of values."""
        from weft.fuse import fuse
        from weft.fuse.float8_products import multiplies_float8
        from weft.passes.fold import fold_float8_weights, fold_half_weights, fold_weights

        self.progress.stage("fusing")
        target = self.compiling_driver.target(self.precision)
        if not target.unpacks_weights:
            program = fold_weights(program, self._evaluator)
        elif not target.widens_weights:
            program = fold_half_weights(program, self._evaluator)
        if not multiplies_float8(target):
            program = fold_float8_weights(program, self._evaluator)
        return fuse(program, target, lambda name, fused: self.dump.stage(name, lambda: fused))

    def build(self, fused: FusedProgram, compilation: Compilation | None = None) -> tuple[Section, ...]:
        """FusedProgram -> Sections of device kernels and of host steps, which `compilation` takes as they are built."""
        from weft.kernels.sections import build_sections

        compiler = self.compiling_driver
        count = len(fused.groups)

        def report(done: float) -> None:
            self._report("building kernels", done, f"{round(done * count)} of {count}")

        target = compiler.target(self.precision)
        if compilation is None:
            sections = build_sections(fused, target, report)
        else:
            launches = None if self.dump.folder is not None else compilation.launches(target)
            sections = build_sections(fused, target, report, compilation.take, launches)
        self.dump.kernels(sections, compiler)
        return sections

    def compile(self, program: TensorProgram, fused: FusedProgram | None = None) -> DeviceProgram:
        """Fuse, build and compile: TensorProgram -> code for the device, or the program itself if it is interpreted.

        `fused`: the fused program, if it exists already. Kernels are compiled while later ones are built.
        """
        if not isinstance(self.driver, CompilingDriver):
            return program
        fused = self.fuse(program) if fused is None else fused
        with_constants = replace(program, constants={**program.constants, **fused.program.constants})
        with self.driver.begin(self.options.cache, self._report) as compilation:
            return compilation.finish(with_constants, self.build(fused, compilation))

    def start(self, program: DeviceProgram) -> Executable:
        """CompiledProgram -> Executable on the device; with `strict`, raise an error if kernels are missing."""
        if self.options.strict and isinstance(self.driver, CompilingDriver) and self.driver.has_memory:
            from weft.runtime.explain import check_strict

            check_strict(self.driver.name, program)
        return self.driver.start(program, self._run_options())

    # -- stages combined ---------------------------------------------------------------------------------------------

    def program(self) -> TensorProgram:
        """Return the optimised program for any shapes; it is traced on the first call."""
        with self.lock:
            if self._program is None:
                self._program = self.trace_any_shapes()
            return self._program

    def trace_any_shapes(self) -> TensorProgram:
        """Trace and optimise for any shapes; if only a run can trace the model, return a program that does so."""
        from weft.opset.lower import build_untraced_program

        try:
            return self.specialise(None, ())
        except OnlyAtRunError:
            return build_untraced_program(self.read().graph)
        except ExecutionError as error:  # computing constants failed, so every run would fail
            where = {"file": self.file, "node": error.node, "value": error.value}
            raise InvalidModelError(error.problem, hint=error.hint, **where) from error
        except WeftError as error:
            raise error.at(file=self.file) from error.__cause__

    def specialise(
        self,
        shapes: Mapping[str, Sequence[int | str | None] | None] | None,
        overridden: Sequence[str],
        outputs: Sequence[str] | None = None,
    ) -> TensorProgram:
        """Trace and optimise for these shapes, overridden defaults and outputs."""
        return self.optimise(self.trace(shapes, overridden, outputs))

    def compile_model(self, sizes: Mapping[str, int] | None = None) -> CachedModel:
        """Compile the whole model for the cache, for any sizes of its dynamic dims or for these."""
        if self.options.cache:
            self.compiling_driver.prepare()
        program, fused = self.traced or (self.trace_any_shapes(), None)
        self.traced = None
        if sizes:
            specs = signature(self.read().graph, program)
            compiled = self.compile(self.specialise(bind_sizes(program.inputs, sizes, self.file), ()))
        else:
            specs = signature(self.read().graph, program, self.read().about)
            compiled = self.compile(program, fused)
        assert not isinstance(compiled, TensorProgram)
        return CachedModel(specs, compiled)

    def prepare(self, program: TensorProgram) -> Executable:
        """Compile and start an optimised program."""
        return self.start(self.compile(program))

    def record(self, program: DeviceProgram) -> Recorder:
        """Return a recorder that runs a program and measures times."""
        return self.driver.record(program, self.options.threads)

    def run_eagerly(self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
        """Run the graph node by node, without a program; return the model's outputs or these values."""
        from weft.opset.lower import run_eagerly

        return run_eagerly(self._graph(outputs), self._evaluator, inputs)

    # -- helpers -----------------------------------------------------------------------------------------------------

    @property
    def _evaluator(self) -> Interpreter:
        from weft.backends.reference.interpret import Interpreter

        return Interpreter()

    def _graph(self, outputs: Sequence[str] | None) -> Graph:
        from weft.ir.graph import with_outputs

        graph = self.read().graph
        return graph if outputs is None else with_outputs(graph, outputs)

    def _run_options(self) -> RunOptions:
        """Let runs compile steps that only they can trace, unless memory is limited: compiling has no known limit."""
        options = self.options.run_options
        if not isinstance(self.driver, CompilingDriver) or options.memory_limit is not None:
            return options
        return replace(options, late=self._compile_late)

    def _compile_late(self, program: TensorProgram) -> Executable:
        return self.prepare(self.optimise(program))

    def _report(self, stage: str, fraction: float, detail: str = "") -> None:
        """Report progress, and release pages of the files whose weights are packed by now."""
        self.progress.stage(stage, fraction, detail)
        for copy in self.files.views():
            release_pages(copy)


def _apply_tuning(device_driver: Driver, options: LoadOptions) -> Driver:
    """Return the driver with its tuned tile choices."""
    if options.tune is None and not isinstance(device_driver, TunableDriver):
        return device_driver
    from weft.runtime.tuning import choosing_driver

    return choosing_driver(device_driver, options.tune, options.cache)
