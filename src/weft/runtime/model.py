"""`Model`, what `weft.load` returns. It runs on its device, and falls back to the next one when that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weft.errors import (
    DeviceFallbackError,
    InputError,
    MissingAttributeError,
    OutOfMemoryError,
    RunCancelledError,
    RunTimeoutError,
    WeftError,
    short_repr,
)
from weft.interrupts import Cancellation, await_run, await_to_completion, is_large
from weft.ir.tensors import DeviceTensor
from weft.runtime.device_history import is_device_error
from weft.runtime.devices import KINDS
from weft.runtime.model_files import raise_missing_package
from weft.runtime.named_values import Outputs, Specs
from weft.runtime.options import USUAL_PRECISION
from weft.runtime.policy import DeviceOption, Route, route
from weft.runtime.run_modes import (
    OPTIONS,
    bring_to_host,
    find_destinations,
    inputs_by_name,
    run_into,
    run_on_stream,
    run_with_limits,
    validate_timeout,
)
from weft.runtime.session import Session, on_host
from weft.tables import ShownAsTables, Table
from weft.threads import make_lock

if TYPE_CHECKING:
    from weft.ir.graph import OnnxModel
    from weft.ir.metadata import Metadata
    from weft.ir.narrowed_products import NarrowedProduct
    from weft.ir.program import TensorProgram
    from weft.ir.specs import Signature
    from weft.plan.program import ProgramPlan
    from weft.report.kernel_list import KernelList
    from weft.runtime.benchmark import Benchmark
    from weft.runtime.device_report import DeviceReport
    from weft.runtime.explain import HostStep
    from weft.runtime.memory import Memory
    from weft.runtime.profile import Profile
    from weft.runtime.session_pool import SessionPool
    from weft.runtime.state import State
    from weft.runtime.weights import Weights


class Model(ShownAsTables):
    """A loaded model, ready to run: `model.run({"x": array})`, or `model(array)`.

    `inputs` and `outputs` are its specs, with a name, a dtype and a shape; `defaults` are inputs that have a default.
    `file` is its path, `metadata` describes its origin, `device` is where it runs. `run` may be
    called from several threads at once.
    """

    def __init__(self, pool: SessionPool, device_route: Route, signature: Signature | None = None) -> None:
        """`device_route`: the devices to try, in order; the option `strict` allows only the first.

        With a signature the model is compiled on first use, otherwise now.
        """
        self.file: str = pool.file
        self.pool = pool
        self._sessions = pool.sessions
        self._route = device_route
        self._device = device_route.devices[0]
        self._fallbacks = () if pool.options.strict else device_route.devices[1:]
        self._former_devices: frozenset[str] = frozenset()
        self._lock = make_lock()
        if signature is None:
            signature = self.session().signature
            if self.device == device_route.devices[0]:
                pool.history.add_service(self.device, device_route.reason)
                if device_route.is_detour:
                    pool.history.warn(self.device, device_route.absent)
        self.inputs: Specs = Specs(signature.inputs)
        self.defaults: Specs = Specs(signature.defaults)
        self.outputs: Specs = Specs(signature.outputs)
        self.metadata: Metadata = signature.metadata
        self._signature = signature
        self._output_names = tuple(spec.name for spec in signature.outputs)
        self._only_output = self._output_names[0] if len(self._output_names) == 1 else None
        self._input_names = tuple(spec.name for spec in signature.inputs)

    # -- runs --------------------------------------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
        keep: bool | Sequence[str] = False,
        stream: int | None = None,
        timeout: float | None = None,
        cancel: Cancellation | None = None,
        into: Mapping[str, Any] | None = None,
        state: State | None = None,
        **unknown: Any,
    ) -> dict[str, Any]:
        """Run on inputs by name and return outputs by name.

        Inputs are numpy arrays, anything with `__array__` or `__dlpack__`, Python numbers and lists, or tensors on this
        model's device. Arrays must have the dtype that `inputs` states. Pass a list for a sequence, None for an
        empty optional.

        outputs: names of outputs, or of any other values of the model's main graph (its inputs, weights and nodes).
            Each set of inner values needs its own program, which is compiled on first use and cached.

        keep: the outputs to leave on the device, by name, or True for all. They are `weft.DeviceTensor`s, on every
            device, which a later run takes without a copy (the state of a loop, a decoder's cache); `numpy()` copies
            them to the host. Strings, sequences and optionals are always on the host.

        stream: the handle of a CUDA stream (torch.cuda.current_stream().cuda_stream). The run is ordered after the work
            on the stream so far, and later work on it sees the outputs that are kept; the host does not wait. Tensors
            of other libraries on the GPU are ordered without this.

        timeout: seconds after which the run raises a RunTimeoutError that states where it was.

        cancel: a `weft.Cancellation`, with which another thread can end the run; it raises a RunCancelledError. After
            both, as after Ctrl-C, the model can run again.

        into: arrays for outputs, by name, of exactly their dtypes and shapes: numpy arrays, or tensors of other
            libraries on the host or on the device. Results are computed in place where possible, otherwise copied, and
            `run` returns these arrays under their names. After an error their content is undefined.

        state: the state from `model.state(...)` that the run continues. It replaces the inputs that it holds, and its
            outputs are returned only if `outputs` names them. After an error the state is as before.
        """
        if unknown:
            raise self._unknown_option(unknown)
        if state is not None:
            self._check_state(state)
            if outputs is None:
                outputs = state.output_names(self.session(), None)
        if into is not None:
            return run_into(self, (inputs, outputs, keep, stream, timeout, cancel), into, state)
        if timeout is not None or cancel is not None:
            return run_with_limits(self, (inputs, outputs, keep, stream), timeout, cancel, state)
        feeds = {} if inputs is None else inputs
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            from weft.runtime.suggestions import inputs_without_names

            raise inputs_without_names(feeds, outputs, self._input_names, self.file)
        session = self._sessions.get(self._device) or self.session()
        if stream is not None:
            return run_on_stream(self, session, (feeds, outputs, keep), stream, state)
        if state is not None:
            return state.run(session, feeds, outputs, keep)
        arrays = session.bind.plain(feeds)
        if arrays is not None and outputs is None and keep is False:
            shortcut = session.shortcuts.get(tuple([array.shape for array in arrays]))
            if shortcut is not None:
                try:
                    results = shortcut(arrays)
                    if self._only_output is None:
                        return Outputs(zip(self._output_names, results))
                    named = Outputs()
                    named[self._only_output] = results[0]
                    return named
                except Exception:
                    pass  # the full path raises it again, with details
        if self._former_devices:
            feeds = bring_to_host(feeds, self._former_devices, self.file)
        request = session.request(feeds, arrays, outputs, keep)
        try:
            return session.answer(request)
        except Exception as error:
            if not self._fall_back(session.device, "running", error):
                raise
            return self.run(on_host(request.bound.arrays), outputs, keep)

    async def run_async(
        self,
        inputs: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
        keep: bool | Sequence[str] = False,
        stream: int | None = None,
        timeout: float | None = None,
        cancel: Cancellation | None = None,
        into: Mapping[str, Any] | None = None,
        state: State | None = None,
        **unknown: Any,
    ) -> dict[str, Any]:
        """Run without blocking the event loop: `await model.run_async({"x": array})`; takes what `run` takes.

        Cancelling the task (`asyncio.wait_for`, `asyncio.timeout`, a TaskGroup) cancels the run. Up to eight runs
        proceed at a time. Do not change the inputs until the run ends.
        """
        if unknown:
            raise self._unknown_option(unknown)
        if state is not None:
            self._check_state(state)
            if outputs is None:
                outputs = state.output_names(await await_run(self.session), None)
        destinations = None if into is None else await await_run(find_destinations, self, outputs, keep, into)
        seconds = validate_timeout(timeout, cancel, self.file)
        try:
            if destinations is not None:
                keep = destinations.keep_names or False
            run = self.run if state is None else partial(self.run, state=state)
            results = await await_run(run, inputs, outputs, keep, stream, timeout=seconds, cancel=cancel)
        except (RunTimeoutError, RunCancelledError) as error:
            raise error.at(file=self.file) from None
        if destinations is None:
            return results
        if is_large([*destinations.arrays.values()]):
            return await await_to_completion(destinations.fill, results)
        return destinations.fill(results)

    def map(
        self,
        rows: Any,
        batch_size: int | None = None,
        workers: int | None = None,
        *,
        errors: Literal["raise", "return"] = "raise",
        shared: Mapping[str, Any] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Run on many rows, in batches, and yield the outputs of each row in order, without the dim of the batch.

        A row has the same bits as `run` on that row alone. Rows of a model that mixes the rows of a batch run one by
        one. Batches are prepared while others run, and only a few are in memory at a time.

        rows: an array for the only input (rows along axis 0), a dict of arrays, a pandas DataFrame, an Arrow table,
            record batch, reader or dataset, a dataset with `len` and items, or any iterable of rows. A row is a dict by
            input, a tuple in the order of inputs, or what the only input takes. Other keys, columns and elements, such
            as labels, are ignored. Numbers in columns are converted to the types of the inputs.

        batch_size: the most rows of a batch; None chooses 32 to 1024, more for small rows. Rows of different shapes are
            grouped within a window of a few batches.

        workers: batches that run at the same time, each on the model's threads; None is 1.

        errors: "raise" raises the error of a row, which says its number; "return" yields the error in its place.

        shared: inputs that are the same for all rows, by name.
        """
        from weft.batch_inference.map_rows import map_rows

        return map_rows(self, rows, batch_size, workers, errors, shared)

    def state(
        self,
        capacity: int | Mapping[str, int] | None = None,
        *,
        pairs: Mapping[str, str] | None = None,
    ) -> State:
        """Make a state: inputs that come back as outputs, such as a decoder's keys and values, held on the device.

        `model.run(inputs, state=state)` continues it: new elements are written behind the old ones.

        capacity: the most elements along the dim that grows, by its name, as in {"past_sequence_length": 4096}, or as a
            number for all dims that grow. Sizes of other dims of the state, such as a batch, may be given too;
            otherwise the first run determines them.

        pairs: the inputs of the state and the outputs in which they come back, by name. By default they are found in
            the graph, and by the names that exporters use.
        """
        from weft.runtime.make_state import make_state

        return make_state(self, capacity, pairs)

    def _check_state(self, state: Any) -> None:
        from weft.runtime.state import State

        if not isinstance(state, State):
            problem = f"state must be a weft.State, not {short_repr(state)}"
            raise InputError(problem, file=self.file, hint="model.state(capacity=...) makes one")
        if not state.belongs_to(self):
            raise InputError("this state belongs to another model", file=self.file, hint="make one: model.state(...)")

    def _unknown_option(self, keywords: Mapping[str, Any]) -> WeftError:
        from weft.runtime.suggestions import RUNNING, unknown_option

        return unknown_option("run", keywords, ("inputs", *OPTIONS), RUNNING, self._input_names).at(file=self.file)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run on inputs by position or name; return the only output, or a tuple of outputs in order."""
        results = tuple(
            self.run(inputs_by_name(arguments, keywords, self.inputs, self._input_names, self.file)).values()
        )
        return results[0] if len(results) == 1 else results

    def to_device(self, array: Any) -> DeviceTensor:
        """Copy an array to this model's device, as an input for later runs."""
        from weft.runtime.tensors import placeable

        try:
            return self.session().driver.place(placeable(array))
        except WeftError as error:
            raise error.at(file=self.file) from error.__cause__
        except MemoryError as error:
            raise OutOfMemoryError("there is not enough memory for this tensor", file=self.file) from error

    # -- devices -----------------------------------------------------------------------------------------------------

    def on(self, device: DeviceOption) -> Model:
        """Return the same model on another device (or chain of them).

        Graph and weights are shared. It is compiled for that device on first use.
        """
        from weft.runtime.choose_device import choose_device

        return Model(self.pool, choose_device(route(device), self.pool), self._signature)

    @property
    def device(self) -> str:
        """The device that runs the model now."""
        return self._device

    @device.setter
    def device(self, device: Any) -> None:
        problem = f"the device of a model cannot be set to {short_repr(device)}"
        raise MissingAttributeError(problem, hint="`model.on(device)` returns the same model on another device")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the model is compiled for."""
        return tuple(self._sessions)

    def warm_all(self) -> tuple[str, ...]:
        """Compile the model for every device that it may run on; return those where that worked.

        `report()` lists what failed, and why.
        """
        ready = []
        for device in dict.fromkeys((self.device, *self._fallbacks, *self._route.devices, *self._sessions)):
            try:
                self.pool.session(device)
                ready.append(device)
            except Exception as error:
                if not is_device_error(error):
                    raise
                self.pool.history.add_failure(device, "loading", error)
        return tuple(ready)

    def invalidate(self, device: str | None = None) -> None:
        """Forget the code compiled for a device, or for all; the next use compiles again or loads it from the cache.

        Runs in progress finish normally.
        """
        for name in self.devices if device is None else route(device).devices:
            self.pool.drop(name)

    def report(self) -> DeviceReport:
        """Report where the model runs and why, which devices failed, and what each of them computes."""
        from weft.runtime.device_report import describe_devices

        return describe_devices(self.file, self.device, self._route, self.pool)

    def session(self) -> Session:
        """Return the session on the current device, opened if needed; fall back to the next device if that fails."""
        while True:
            device = self.device
            try:
                return self.pool.session(device)
            except Exception as error:
                if not self._fall_back(device, "loading", error):
                    raise

    def _fall_back(self, device: str, stage: str, error: Exception) -> bool:
        """Switch to the next device after a failure; False if the error should be raised instead."""
        if not is_device_error(error):
            return False
        with self._lock:
            if self.device != device:  # another thread switched already
                return True
            if len(self._route.devices) == 1 and not self._route.absent:
                return False
            history = self.pool.history
            history.add_failure(device, stage, error)
            if self.pool.options.strict:
                return False
            if not self._fallbacks:
                raise DeviceFallbackError(history.attempts, file=self.file) from error
            self.pool.drop(device)
            fallback, *remaining = self._fallbacks
            self._fallbacks = tuple(remaining)
            self._switch_device(fallback, f"{device} failed")
            history.warn(fallback, history.attempts[-1:])
            return True

    def move_to(self, device: str, reason: str) -> None:
        """Switch to another device; the current one becomes the first fallback."""
        with self._lock:
            self._fallbacks = (self.device, *(name for name in self._fallbacks if name != device))
            self._switch_device(device, reason)

    def _switch_device(self, device: str, reason: str) -> None:
        self._former_devices |= {self.device}
        self._device = device
        self.pool.history.add_service(device, reason)

    # -- weights -----------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Weights:
        """The current weights by name: initializers and Constant nodes.

        A weight in a subgraph is named "node output/attribute/name", after the first output of the subgraph's node.
        """
        from weft.runtime.weights import Weights

        return Weights(lambda: self.pool.files)

    def set_weight(self, name: str, array: Any) -> None:
        """Replace a weight, on every device, by an array of the same dtype and shape.

        Results are then those of the file that `save` writes, to the bit. Runs in progress finish with the old weights;
        later ones use the new weights.
        """
        self.pool.set_weights({name: array})

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Replace several weights at once: no run mixes old and new ones."""
        self.pool.set_weights(weights)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model as an ONNX file, with its current weights and otherwise unchanged.

        External data is included in the file, or if it exceeds 2 GB written to one file beside it.
        """
        try:
            target = Path(path)
        except TypeError as error:
            problem = f"path must be a path to save to, not a {type(path).__name__}"
            raise InputError(problem, file=self.file) from error
        self.pool.files.save(target)

    def __copy__(self) -> Model:
        """Copy the model; weights are shared: setting them sets them for both."""
        return self._copy(self.pool)

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        """Copy the model; weights can be set independently."""
        return self._copy(self.pool.copy())

    def _copy(self, pool: SessionPool) -> Model:
        copy = Model(pool, self._route, self._signature)
        with self._lock:
            copy._device, copy._fallbacks, copy._former_devices = self.device, self._fallbacks, self._former_devices
        return copy

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle source, options and changed weights; code comes from the cache of the process that unpickles."""
        from weft.loading import load_pickled

        files = self.pool.files
        # dump: several processes would overwrite each other's files
        options = replace(self.pool.options, device=self._route.settings.option, dump=None)
        return load_pickled, (files.portable(), options, dict(files.changed))

    if not TYPE_CHECKING:  # type checkers should report unknown attributes

        def __getattr__(self, name: str) -> Any:
            """Raise an error that suggests what to write instead."""
            from weft.runtime.suggestions import missing_attribute

            raise missing_attribute(self, name, self.__dict__.get("_input_names", ()), KINDS)

    # -- inspection ------------------------------------------------------------------------------------------

    @property
    def source(self) -> OnnxModel:
        """The ONNX model as read from its file."""
        return self.session().source

    @property
    def program(self) -> TensorProgram:
        """The tensor program for any shapes."""
        return self.session().program

    @property
    def kernels(self) -> KernelList:
        """The kernels that the model becomes on its device: nodes, template, cost and code of each.

        Costs are for typical sizes of dynamic dims. `print(model.kernels)` shows a table, `model.kernels[0].code` the
        code of one kernel by language.
        """
        try:
            from weft.report.kernel_list import list_kernels

            return list_kernels(self.session().pipeline, {})
        except ModuleNotFoundError as error:
            raise_missing_package(error, self.file)

    def explain(self) -> tuple[HostStep, ...]:
        """List the steps that did not become native code: the node of each, and why."""
        return self.session().explain()

    def narrowed(self) -> tuple[NarrowedProduct, ...]:
        """List the matrix products that round their operands: the node of each, and the narrower type.

        It is empty unless the model's precision allows this and the device has such products.
        """
        return self.session().narrowed()

    def deviation(self, inputs: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Measure how far each float output is from that of the same model in "float32".

        The result is the largest difference divided by the largest magnitude in float32, on these inputs or on random
        ones; 0 where nothing is narrowed. The model is compiled in float32 for this.
        """
        from weft.runtime.deviation import output_deviations
        from weft.runtime.random_inputs import random_inputs

        feeds = random_inputs(self) if inputs is None else inputs
        exact = self.pool.open_in_precision(self.device, USUAL_PRECISION)
        return output_deviations(self.run(feeds), exact, feeds)

    def memory(self, shapes: Mapping[str, int | Sequence[int]] | None = None, *, state: State | None = None) -> Memory:
        """Compute the memory that a run needs, for sizes of dynamic dims or shapes of inputs, by name.

        Other dynamic dims get typical sizes, which the result states.

        state: a state that the run continues, whose memory is counted too.
        """
        if state is None:
            return self.session().memory(shapes)
        self._check_state(state)
        return state.memory(self.session(), shapes)

    def plan(self, shapes: Mapping[str, int | Sequence[int]] | None = None) -> tuple[ProgramPlan, dict[str, int]]:
        """Return the memory plan that `memory` sums up, and its sizes of dynamic dims."""
        return self.session().plan(shapes)

    def profile(
        self,
        inputs: Mapping[str, Any] | None = None,
        repeat: int = 10,
        *,
        batch: int | None = None,
        shapes: Mapping[str, int | Sequence[int]] | None = None,
        seed: int = 0,
    ) -> Profile:
        """Run `repeat` times and report where time and memory go: kernels, threads, the arena.

        Without inputs it runs on random ones; `batch`, `shapes` and `seed` are those of `weft.random_inputs`.
        """
        from weft.runtime.profile import with_operators
        from weft.runtime.random_inputs import inputs_or_random

        feeds = inputs_or_random(self, inputs, batch, shapes, seed)
        try:
            return with_operators(self.session().profile(feeds, repeat), lambda: self.source.graph)
        except ModuleNotFoundError as error:
            raise_missing_package(error, self.file)

    def bench(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        batch: int | None = None,
        shapes: Mapping[str, int | Sequence[int]] | None = None,
        seed: int = 0,
        seconds: float = 1.0,
        against: str | Sequence[str] = (),
    ) -> Benchmark:
        """Run for some seconds and report the time of a run: the median and quartiles.

        Without inputs it runs on random ones; `batch`, `shapes` and `seed` are those of `weft.random_inputs`.

        against: other engines that take turns with this model on the same inputs, in this process: "onnxruntime",
            "openvino", "torch" or "tinygrad", if they are installed.
        """
        from weft.runtime.benchmark import benchmark
        from weft.runtime.random_inputs import inputs_or_random

        return benchmark(self, inputs_or_random(self, inputs, batch, shapes, seed), seconds, against)

    def view(
        self, path: str | PathLike[str] | None = None, *, profile: Profile | None = None, measure: bool = False
    ) -> Path:
        """Write one HTML page that shows the model: graph, kernels, weights; see `weft.view`.

        profile: a result of `model.profile()`, for the times of nodes; measure: profile now, on random inputs.
        """
        try:
            from weft.report.view import view

            return view(self, path, profile=profile, measure=measure)
        except ModuleNotFoundError as error:
            raise_missing_package(error, self.file)

    def __repr__(self) -> str:
        """File, device, inputs and outputs on one line; `print(model)` shows a table."""
        from weft.runtime.model_tables import model_line

        return model_line(self)

    def _tables(self) -> Iterable[Table]:
        from weft.runtime.model_tables import model_tables

        return model_tables(self)

    def __dir__(self) -> list[str]:
        """List the public attributes."""
        from weft.runtime.model_tables import INTERNAL

        return [name for name in super().__dir__() if name not in INTERNAL]
