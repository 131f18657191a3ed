"""A loaded model: what `weft.load` gives. It runs on its device, and where that fails on the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import (
    DeviceFallbackError,
    InputError,
    MissingAttributeError,
    OutOfMemoryError,
    RunCancelledError,
    RunTimeoutError,
    WeftError,
    shown,
)
from weft.interrupts import Cancellation, awaited, completed, is_large
from weft.ir.tensors import DeviceTensor
from weft.runtime.attempts import is_the_devices
from weft.runtime.calls import (
    OPTIONS,
    brought,
    checked_patience,
    inputs_by_name,
    places_of,
    run_into,
    run_on_stream,
    run_watched,
)
from weft.runtime.named import Outputs, Specs
from weft.runtime.options import USUAL_PRECISION
from weft.runtime.policy import DeviceOption, Route, route
from weft.runtime.session import Session, on_host
from weft.tables import ShownTable, Tabled
from weft.threads import lock

if TYPE_CHECKING:
    from weft.ir.graph import OnnxModel
    from weft.ir.metadata import Metadata
    from weft.ir.narrowed import NarrowedProduct
    from weft.ir.program import TensorProgram
    from weft.ir.specs import Signature
    from weft.plan.program import ProgramPlan
    from weft.runtime.benchmark import Benchmark
    from weft.runtime.deployment import Deployment
    from weft.runtime.device_report import DeviceReport
    from weft.runtime.explain import HostStep
    from weft.runtime.memory import Memory
    from weft.runtime.profile import Profile
    from weft.runtime.weights import Weights


class Model(Tabled):
    """A model that is ready to run, as `weft.load` gives it: `model.run({"x": array})`, or `model(array)`.

    `inputs` and `outputs` are what it takes and gives, `defaults` inputs that need not be given: specs with a name, a
    dtype and a shape. `file` is where it came from, `metadata` what the file says of itself, `device` where it runs.
    `run` may be called from several threads at once.
    """

    def __init__(self, deployment: Deployment, way: Route, strict: bool, signature: Signature | None = None) -> None:
        """`way` are the devices to try, in order; `strict` allows only the first of them.

        Where the signature is known the model is compiled with its first use, else now.
        """
        self.file: str = deployment.opener.file
        self._device = way.devices[0]
        self.deployment = deployment
        self._sessions = deployment.sessions
        self._route = way
        self._following = () if strict else way.devices[1:]
        self._strict = strict
        self._left: frozenset[str] = frozenset()  # devices that served before
        self._lock = lock()
        if signature is None:
            signature = self.session().signature
            if self.device == way.devices[0]:
                deployment.history.serves(self.device, way.reason)
                if way.is_detour:
                    deployment.history.warn(self.device, way.absent)
        self.inputs: Specs = Specs(signature.inputs)
        self.defaults: Specs = Specs(signature.defaults)
        self.outputs: Specs = Specs(signature.outputs)
        self.metadata: Metadata = signature.metadata
        self._signature = signature
        self._names = tuple(spec.name for spec in signature.outputs)
        self._only = self._names[0] if len(self._names) == 1 else None
        self._takes = tuple(spec.name for spec in signature.inputs)

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
        **unknown: Any,
    ) -> dict[str, Any]:
        """Run on inputs by name; gives outputs by name, all or those asked for.

        outputs: names of outputs, or of any other values of the model's main graph (of its inputs, weights and nodes).
            There is a program for each set of inner values, made with its first use and kept like those for shapes.

        Inputs are numpy arrays, anything with `__array__` or `__dlpack__`, Python numbers and lists, or tensors on this
        model's device. Arrays must have the dtype that `inputs` states. A sequence is a list, an empty optional None.

        keep: the outputs to leave on the device, by name, or True for all. They are `weft.DeviceTensor`s, on every
            device, to be passed to a later run without a way over the host (the state of a loop, a decoder's cache);
            `numpy()` brings them here. Strings, sequences and optionals are the host's as ever.

        stream: of CUDA, as the number that other libraries give it (torch.cuda.current_stream().cuda_stream). The run
            sees what the stream was given before, and what it is given afterwards sees the outputs that are kept;
            nobody waits on the host. Tensors of other libraries on the GPU are ordered by themselves.

        timeout: seconds after which the run ends with a RunTimeoutError that says where it was.

        cancel: what another thread may end the run with (`weft.Cancellation`), which then raises a RunCancelledError.
            After both, as after Ctrl-C, the model runs again as before.

        into: arrays for outputs, by name, of exactly their dtypes and shapes: numpy's, or tensors of other libraries in
            the host's memory or on the device. Results are computed there where that is possible, else copied there,
            and the values that `run` gives for these names are what was passed. After an error they may hold anything.
        """
        if unknown:
            raise self._unknown_option(unknown)
        if into is not None:
            return run_into(self, (inputs, outputs, keep, stream, timeout, cancel), into)
        if timeout is not None or cancel is not None:
            return run_watched(self, (inputs, outputs, keep, stream), timeout, cancel)
        given = {} if inputs is None else inputs
        if type(given) is not dict and not isinstance(given, Mapping):
            from weft.runtime.habits import not_by_name

            raise not_by_name(given, outputs, self._takes, self.file)
        session = self._sessions.get(self._device) or self.session()
        if stream is not None:
            return run_on_stream(self, session, (given, outputs, keep), stream)
        arrays = session.bind.plain(given)
        if arrays is not None and outputs is None and keep is False:
            shortcut = session.shortcuts.get(tuple([array.shape for array in arrays]))
            if shortcut is not None:
                try:
                    results = shortcut(arrays)
                    if self._only is None:
                        return Outputs(zip(self._names, results))
                    found = Outputs()
                    found[self._only] = results[0]
                    return found
                except Exception:
                    pass  # it is raised again, with what there is to say about it
        request = session.request(brought(given, self._left, self.file) if self._left else given, arrays, outputs, keep)
        try:
            return session.answer(request)
        except Exception as error:
            if not self._leaves(session.device, "running", error):
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
        **unknown: Any,
    ) -> dict[str, Any]:
        """What `run` gives, for event loops, which go on meanwhile: `await model.run_async({"x": array})`.

        Where the task is cancelled (by `asyncio.wait_for`, `asyncio.timeout`, a TaskGroup), so is the run. Several may
        be awaited at once, of which eight run at a time. Inputs must stay as they are until then.
        """
        if unknown:
            raise self._unknown_option(unknown)
        places = None if into is None else await awaited(places_of, self, outputs, keep, into)
        seconds = checked_patience(timeout, cancel, self.file)
        try:
            kept = keep if places is None else places.kept or False
            results = await awaited(self.run, inputs, outputs, kept, stream, timeout=seconds, cancel=cancel)
        except (RunTimeoutError, RunCancelledError) as error:
            raise error.at(file=self.file) from None
        if places is None:
            return results
        return await completed(places.fill, results) if is_large([*places.arrays.values()]) else places.fill(results)

    def _unknown_option(self, given: Mapping[str, Any]) -> WeftError:
        from weft.runtime.habits import RUNNING, unknown_option

        return unknown_option("run", given, ("inputs", *OPTIONS), RUNNING, self._takes).at(file=self.file)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run on inputs by position or name; gives the only output, or a tuple in the model's order."""
        results = tuple(self.run(inputs_by_name(arguments, keywords, self.inputs, self._takes, self.file)).values())
        return results[0] if len(results) == 1 else results

    def to_device(self, array: Any) -> DeviceTensor:
        """A tensor with an array's elements on this model's device, for runs to come."""
        from weft.runtime.tensors import placeable

        try:
            return self.session().driver.place(placeable(array))
        except WeftError as error:
            raise error.at(file=self.file) from error.__cause__
        except MemoryError as error:
            raise OutOfMemoryError("the memory for this tensor cannot be had", file=self.file) from error

    # -- devices -----------------------------------------------------------------------------------------------------

    def on(self, device: DeviceOption) -> Model:
        """The same model on another device (or chain of them): graph and weights are shared, and it is compiled there
        with its first use.
        """
        from weft.runtime.picking import picked

        way = picked(route(device), self.deployment)
        return Model(self.deployment, way, self._strict, self._signature)

    @property
    def device(self) -> str:
        """The device that serves now."""
        return self._device

    @device.setter
    def device(self, device: Any) -> None:
        problem = f"the device of a model cannot be set to {shown(device)}"
        raise MissingAttributeError(problem, hint="`model.on(device)` is the same model on another one")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the model is compiled for."""
        return tuple(self._sessions)

    def warm_all(self) -> tuple[str, ...]:
        """Compile the model for every device that it may run on, and give those where that worked.

        What failed, and why, is in `report()`.
        """
        ready = []
        for device in dict.fromkeys((self.device, *self._following, *self._route.devices, *self._sessions)):
            try:
                self.deployment.session(device)
                ready.append(device)
            except Exception as error:
                if not is_the_devices(error):
                    raise
                self.deployment.history.failed(device, "loading", error)
        return tuple(ready)

    def invalidate(self, device: str | None = None) -> None:
        """Forget what was compiled for a device, or for all: the next use compiles again, or takes it from the cache.

        Runs that are under way end as they would.
        """
        for name in self.devices if device is None else route(device).devices:
            self.deployment.drop(name)

    def report(self) -> DeviceReport:
        """Where the model runs and why: devices, what was tried and failed, what each of them does."""
        from weft.runtime.device_report import describe_devices

        return describe_devices(self.file, self.device, self._route, self.deployment)

    def session(self) -> Session:
        """The model on its device, compiled now if it was not; where that fails, on the next one."""
        while True:
            device = self.device
            try:
                return self.deployment.session(device)
            except Exception as error:
                if not self._leaves(device, "loading", error):
                    raise

    def _leaves(self, device: str, stage: str, error: Exception) -> bool:
        """Whether the model goes on to another device, since one failed; if so, it is there now."""
        if not is_the_devices(error):
            return False
        with self._lock:
            if self.device != device:  # another thread was faster
                return True
            if len(self._route.devices) == 1 and not self._route.absent:
                return False
            history = self.deployment.history
            history.failed(device, stage, error)
            if self._strict:
                return False
            if not self._following:
                raise DeviceFallbackError(history.attempts, file=self.file) from error
            self.deployment.drop(device)
            self._following, following = self._following[1:], self._following[0]
            self._moves_to(following, f"{device} failed")
            history.warn(following, history.attempts[-1:])
            return True

    def move_to(self, device: str, reason: str) -> None:
        """Have another device serve, and the present one follow it."""
        with self._lock:
            self._following = (self.device, *(name for name in self._following if name != device))
            self._moves_to(device, reason)

    def _moves_to(self, device: str, reason: str) -> None:
        self._left |= {self.device}
        self._device = device
        self.deployment.history.serves(device, reason)

    # -- weights -----------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Weights:
        """The weights by name, as they are now: initializers, and constants among the nodes.

        Inside of a subgraph, the first output of its node and the attribute come before the name, with slashes.
        """
        from weft.runtime.weights import Weights

        return Weights(lambda: self.deployment.opener.files)

    def set_weight(self, name: str, array: Any) -> None:
        """Change a weight, on every device that the model is compiled for and in compilations to come.

        dtype and shape stay as they are. Results are then those of the file that `save` writes, to the bit. Runs that
        are under way end with the old weights, each later one has the new ones.
        """
        self.deployment.set_weights({name: array})

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Change several weights at once: no run sees some of the old ones and some of the new."""
        self.deployment.set_weights(weights)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model as an ONNX file, with the weights that were set; all else is as it was.

        Data that lay in other files is taken in; where that is more than 2 GB it goes into one file beside the new one.
        """
        try:
            target = Path(path)
        except TypeError as error:
            raise InputError(f"a path to save to, not a {type(path).__name__}", file=self.file) from error
        self.deployment.opener.files.save(target)

    def __copy__(self) -> Model:
        """The same model: whoever sets weights sets them for both."""
        return self._copied(self.deployment)

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        """A model with the same weights, which can be set without those of this one."""
        return self._copied(self.deployment.copy())

    def _copied(self, deployment: Deployment) -> Model:
        other = Model(deployment, self._route, self._strict, self._signature)
        with self._lock:
            other._device, other._following, other._left = self.device, self._following, self._left
        return other

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Source, options and weights that were set; what is compiled comes from the cache where it is loaded."""
        return self.deployment.opener.portable(self._route.settings.option)

    if not TYPE_CHECKING:  # for which there are no such attributes

        def __getattr__(self, name: str) -> Any:
            """What to write instead of an attribute that models have elsewhere."""
            from weft.runtime.devices import KINDS
            from weft.runtime.habits import missing_attribute

            raise missing_attribute(self, name, self.__dict__.get("_takes", ()), KINDS)

    # -- what is told of it ------------------------------------------------------------------------------------------

    @property
    def source(self) -> OnnxModel:
        """The model as its file has it."""
        return self.session().source

    @property
    def program(self) -> TensorProgram:
        """The tensor program for any shapes."""
        return self.session().program

    def explain(self) -> tuple[HostStep, ...]:
        """The steps that did not become native code: the node each came from, and why; empty if all did."""
        return self.session().explain()

    def narrowed(self) -> tuple[NarrowedProduct, ...]:
        """The products that round their operands, the node each came from, and to what: as far as the model's precision
        allows it and the device has such products.
        """
        return self.session().narrowed()

    def deviation(self, inputs: Mapping[str, Any] | None = None) -> dict[str, float]:
        """How far each output of floats is from that of the same model in "float32", for inputs or for made-up ones.

        It is the largest difference, as a part of the largest magnitude in float32; 0 where nothing is narrowed. The
        model is compiled in float32 for this, which then goes.
        """
        from weft.runtime.random_inputs import random_inputs
        from weft.runtime.rounding import output_deviations

        given = random_inputs(self) if inputs is None else inputs
        exact = self.deployment.opener.with_precision(USUAL_PRECISION)
        return output_deviations(self.run(given), exact.open(self.device), given)

    def memory(self, shapes: Mapping[str, int | Sequence[int]] | None = None) -> Memory:
        """What a run needs, without running: for sizes of dynamic dims, or shapes of inputs, by name.

        Dynamic dims that are not given get usual sizes, which the answer states.
        """
        return self.session().memory(shapes)

    def plan(self, shapes: Mapping[str, int | Sequence[int]] | None = None) -> tuple[ProgramPlan, dict[str, int]]:
        """The memory plan that `memory` sums up, and the sizes of dynamic dims that it is for."""
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
        """Run `repeat` times and tell where time and memory go: kernels, threads, the arena.

        Without inputs they are made up, of the sizes that are given, as by `weft.random_inputs`.
        """
        from weft.runtime.profile import with_operators
        from weft.runtime.random_inputs import given_or_random

        given = given_or_random(self, inputs, batch, shapes, seed)
        return with_operators(self.session().profile(given, repeat), lambda: self.source.graph)

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
        """Run for some seconds and tell how long a run takes: the median, and the quartiles around it.

        Without inputs they are made up, of the sizes that are given, as by `weft.random_inputs`.

        against: other engines that take turns with this model on the same inputs, in this process: "onnxruntime",
            "openvino", "torch" or "tinygrad", as far as they are installed.
        """
        from weft.runtime.benchmark import benchmark
        from weft.runtime.random_inputs import given_or_random

        return benchmark(self, given_or_random(self, inputs, batch, shapes, seed), seconds, against)

    def view(
        self, path: str | PathLike[str] | None = None, *, profile: Profile | None = None, measure: bool = False
    ) -> Path:
        """Write one HTML page that shows the model: graph, kernels, weights; `weft.view` says more.

        profile: what `model.profile()` gave, for the times of nodes; measure: make one now, with made-up inputs.
        """
        written: Path = import_module("weft.report.view").view(self, path, profile=profile, measure=measure)
        return written

    def __repr__(self) -> str:
        """File, device, inputs and outputs on one line; `print(model)` has them in a table."""
        from weft.runtime.model_tables import model_line

        return model_line(self)

    def _tables(self) -> Iterable[ShownTable]:
        from weft.runtime.model_tables import model_tables

        return model_tables(self)

    def __dir__(self) -> list[str]:
        """What people are to find."""
        from weft.runtime.model_tables import INTERNAL

        return [name for name in super().__dir__() if name not in INTERNAL]
