"""`State`: what a model remembers between runs, such as a decoder's keys and values, in memory that runs extend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import DeviceError, InputError, OutOfMemoryError, WeftError, short_repr
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.state import StatePair
from weft.ir.tensors import DeviceTensor
from weft.quantities import format_bytes, format_plural, join_few
from weft.runtime.arguments import whole_number
from weft.runtime.inputs import InputBinder, has_shape
from weft.runtime.named_values import Outputs
from weft.runtime.programs import UNFIT
from weft.runtime.session import Session
from weft.runtime.state_axes import elements_between, first_elements, growing_dim
from weft.runtime.state_file import read_state_file, write_state_file
from weft.threads import make_lock

if TYPE_CHECKING:
    from weft.backends.device import Executable
    from weft.ir.state import StateLayout
    from weft.runtime.inputs import BoundInputs
    from weft.runtime.memory import Memory
    from weft.runtime.model import Model


class State:
    """The state of a model between runs, from `model.state(...)`: `model.run(inputs, state=state)` continues it.

    Inputs that come back as outputs are held on the model's device. Those that grow, such as a decoder's keys and
    values, have memory for `capacity` elements; a run writes new elements behind the old ones. A state belongs to one
    model and device, and one run at a time uses it: others wait.
    """

    def __init__(self, model: Model, pairs: Sequence[StatePair], capacity: Mapping[str, int]) -> None:
        """`capacity`: the most elements along growing dims, and sizes of other dims of the state, by name."""
        self._model = model
        self._session_device = model.device
        self._pairs = {pair.input: pair for pair in pairs}
        self._capacity = dict(capacity)
        self._specs = {spec.name: spec for spec in model.inputs if spec.name in self._pairs}
        self._results = {pair.input: model.outputs[pair.output] for pair in pairs}
        growing = {growing_dim(self._specs[pair.input], pair): 0 for pair in pairs if pair.axis is not None}
        self._lengths: dict[str, int] = dict(growing)
        self._contents: dict[str, Array | DeviceTensor] = {}
        self._buffers: frozenset[str] = frozenset()  # the inputs whose contents have room for `capacity` elements
        self._cleared: frozenset[str] = frozenset()  # of these, those whose elements after the last must be 0
        self._changed: dict[str, int] = {}  # the length at which inputs of fixed size were last replaced
        self._shown = [
            (spec.name, axis, symbol.name)
            for spec in model.inputs
            if spec.name not in self._pairs
            for axis, dim in enumerate(spec.type.shape or ())
            if (symbol := dims.as_symbol(dim)) is not None
        ]
        self._own_dims = set(self._list_own_dims())
        self._binder: tuple[Session, InputBinder] | None = None
        self._prepared: tuple[frozenset[str], dict[str, int]] | None = None  # for these held inputs and sizes
        self._lock = make_lock()

    # -- what users see ----------------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """The number of elements along the growing dim; 0 if the state has only fixed sizes."""
        return max(self._lengths.values(), default=0)

    @property
    def capacity(self) -> int | None:
        """The most elements along the growing dim; None if the state has only fixed sizes."""
        return min((self._capacity[name] for name in self._lengths), default=None)

    @property
    def pairs(self) -> dict[str, str]:
        """The inputs that are held, and the outputs in which they come back."""
        return {pair.input: pair.output for pair in self._pairs.values()}

    @property
    def state_pairs(self) -> tuple[StatePair, ...]:
        """The pairs, with the axes along which they grow."""
        return tuple(self._pairs.values())

    @property
    def device(self) -> str:
        """The device whose memory holds it."""
        return self._session_device

    @property
    def nbytes(self) -> int:
        """The bytes that it takes; 0 before the first run, which determines the sizes that are not given."""
        return sum(content.nbytes for content in self._contents.values())

    def __repr__(self) -> str:
        length = (
            f"length {self.length:,} of {self.capacity:,}"
            if self._lengths
            else format_plural(len(self._pairs), "tensor")
        )
        return f"<weft.State: {length}, {format_bytes(self.nbytes)} on {self.device}>"

    def numpy(self) -> dict[str, Array]:
        """Copy its content to arrays, by the names of the inputs."""
        with self._lock:
            return {name: np.array(self._exact_array(name)) for name in self._contents}

    def truncate(self, length: int) -> None:
        """Forget all but the first elements along the growing dim; 0 forgets everything.

        A recurrent state of fixed size cannot go back: it raises an InputError, unless the length is 0.
        """
        count = whole_number(length, "length", self._model.file, least=0)
        with self._lock:
            if count > self.length:
                problem = f"a state of length {self.length} cannot be truncated to {count}"
                raise InputError(problem, file=self._model.file)
            if not count:
                self._reset()
            stuck = [name for name, changed in self._changed.items() if changed > count]
            if stuck and count:
                problem = f"the state cannot go back to length {count}: {join_few(stuck, 4)} has a fixed size"
                raise InputError(problem, file=self._model.file, hint="copy the state before the run: state.copy()")
            for name, pair in self._pairs.items():
                if pair.axis is not None and name in self._contents:
                    self._forget(name, pair.axis, count)
            self._lengths = {name: min(old, count) for name, old in self._lengths.items()}

    def copy(self) -> State:
        """Copy the state, so that two runs can continue it in different ways."""
        other = State(self._model, tuple(self._pairs.values()), self._capacity)
        with self._lock:
            other._take(self, {name: np.array(self._host_array(name)) for name in self._contents})
        return other

    def save(self, path: str | PathLike[str]) -> None:
        """Write its content to a file, for `load` on any device."""
        with self._lock:
            arrays = {name: np.array(self._exact_array(name)) for name in self._contents}
            about = {"pairs": self.pairs, "lengths": self._lengths, "changed": self._changed}
        write_state_file(path, arrays, about, self._model.file)

    def load(self, path: str | PathLike[str]) -> None:
        """Replace its content by that of a file that `save` wrote for the same model."""
        arrays, about = read_state_file(path, self._model.file)
        if about.get("pairs") != self.pairs or set(about.get("lengths", ())) != set(self._lengths):
            hint = f"this state holds {join_few(self._pairs, 4)}"
            raise InputError(f"{path} has the state of another model", file=self._model.file, hint=hint)
        lengths = {name: int(length) for name, length in about["lengths"].items()}
        self._replace(arrays, lengths, {name: int(length) for name, length in about.get("changed", {}).items()})

    def fill(self, contents: Mapping[str, Any]) -> None:
        """Replace its content by arrays or tensors, such as the outputs of another model: all its inputs, by name."""
        if contents.keys() != self._pairs.keys():
            raise InputError(f"a state of this model holds {join_few(self._pairs, 4)}", file=self._model.file)
        arrays = {
            name: content.numpy() if isinstance(content, DeviceTensor) else np.asarray(content)
            for name, content in contents.items()
        }
        lengths: dict[str, int] = {}
        for name, pair in self._pairs.items():
            if pair.axis is not None and pair.axis < arrays[name].ndim:
                lengths.setdefault(growing_dim(self._specs[name], pair), arrays[name].shape[pair.axis])
        length = max(lengths.values(), default=0)
        self._replace(arrays, lengths, {name: length for name, pair in self._pairs.items() if pair.axis is None})

    def _replace(self, arrays: Mapping[str, Array], lengths: dict[str, int], changed: dict[str, int]) -> None:
        with self._lock:
            for name, array in arrays.items():
                self._check_content(name, array, lengths)
            self._check_lengths(lengths)
            self._reset()
            self._contents = {name: self._place(array) for name, array in arrays.items()}
            self._lengths, self._changed = lengths, changed

    def belongs_to(self, model: Model) -> bool:
        """Whether it is a state of this model, or of a copy that shares its sessions."""
        return model.pool is self._model.pool

    # -- runs --------------------------------------------------------------------------------------------------------

    def run(
        self, session: Session, feeds: Mapping[str, Any], outputs: Sequence[str] | None, keep: bool | Sequence[str]
    ) -> dict[str, Any]:
        """Run the model once more; `model.run(..., state=state)` calls this."""
        if session.device != self._session_device:
            problem = f"this state is on {self._session_device!r}, and the model runs on {session.device!r}"
            raise DeviceError(problem, file=session.file, hint="make a new state: model.state(...)")
        state_inputs = [name for name in feeds if name in self._pairs] if isinstance(feeds, Mapping) else []
        if state_inputs:
            hint = "leave it out, or run without a state"
            raise InputError(f"input {short_repr(state_inputs[0])} is held by the state", file=session.file, hint=hint)
        names = self.output_names(session, outputs)
        keep_names = () if keep is False else names if keep is True else session.check_names(keep, "keep")
        with self._lock:
            bound = self._bind(session, feeds)
            sizes = self._bind_sizes(bound)
            overridden = tuple(spec.name for spec in session.defaults if spec.name in bound.arrays)
            executable = session.stateful_program(tuple(self._pairs.values()), names, overridden)
            if executable is not None and bound.clash is None:
                try:
                    return self._run_in_place(session, executable, bound, sizes, (names, keep_names))
                except UNFIT:
                    pass
            return self._run_by_hand(session, feeds, sizes, (names, keep_names))

    def output_names(self, session: Session, outputs: Sequence[str] | None) -> tuple[str, ...]:
        """Return the outputs of a run: those that are asked for, or all that the state does not hold."""
        if outputs is not None:
            return session.check_names(outputs)
        state_outputs = {pair.output for pair in self._pairs.values()}
        return tuple(spec.name for spec in session.signature.outputs if spec.name not in state_outputs)

    def memory(self, session: Session, shapes: Mapping[str, int | Sequence[int]] | None) -> Memory:
        """Compute the memory of a run that continues the state."""
        from weft.runtime.state_memory import plan_stateful_run

        names = self.output_names(session, None)
        executable = session.stateful_program(tuple(self._pairs.values()), names, ())
        return plan_stateful_run(session, executable, shapes, self._lengths, self._capacity)

    def _run_in_place(
        self,
        session: Session,
        executable: Executable,
        bound: BoundInputs,
        sizes: Mapping[str, int],
        output_names: tuple[Sequence[str], Sequence[str]],
    ) -> dict[str, Any]:
        names, keep_names = output_names
        layout = state_layout(executable)
        number = DimEvaluator({**sizes, **self._lengths})
        lengths = {
            entry.length: number(entry.length_after) for entry in layout.inputs if entry.length_after is not None
        }
        self._check_lengths(lengths)
        rooms = {
            room: self._capacity[entry.length] - number(after) for entry in layout.inputs for room, after in entry.rooms
        }
        held_names = frozenset(entry.name for entry in layout.inputs)
        self._cleared = frozenset(entry.name for entry in layout.inputs if entry.reads_beyond)
        self._prepare(session, held_names, sizes)
        run_sizes = {**self._lengths, **rooms}
        limit = self._model.pool.options.bytes_limit
        if limit is not None:
            from weft.runtime.state_memory import check_limit

            check_limit(executable, {**sizes, **run_sizes}, self.nbytes, limit, session.file)
        inputs = {**bound.arrays, **self._contents}
        carried = range(len(names), len(names) + len(layout.carried))
        keep = [number for number, name in enumerate(names) if name in keep_names] + list(carried)
        try:
            results = executable.run([inputs[name] for name in executable.input_names], keep, run_sizes)
        except UNFIT:
            raise
        except BaseException as error:
            self._restore(session, held_names)
            if isinstance(error, WeftError):
                raise error.at(file=session.file) from error.__cause__
            if isinstance(error, MemoryError):
                problem = "there is not enough memory for this run"
                raise OutOfMemoryError(problem, file=session.file) from error
            raise
        new_lengths = results[len(results) - len(layout.lengths) :]
        lengths |= {name: int(length[0]) for name, length in zip(layout.lengths, new_lengths)}
        for pair, content in zip(layout.carried, results[len(names) :]):
            self._carry(pair, content, max(lengths.values(), default=0), lengths)
        self._lengths.update(lengths)
        return session.name_outputs(names, results, list(inputs.values()), keep_names)

    def _run_by_hand(
        self,
        session: Session,
        feeds: Mapping[str, Any],
        sizes: Mapping[str, int],
        output_names: tuple[Sequence[str], Sequence[str]],
    ) -> dict[str, Any]:
        """Pass the state as inputs, and take it back from the outputs."""
        names, keep_names = output_names
        self._prepare(session, self._buffers, sizes)
        state_names = [pair.output for pair in self._pairs.values()]
        past = {
            name: self._exact_array(name) if name in self._buffers else self._contents[name] for name in self._pairs
        }
        keep = [*keep_names, *(state_names if session.driver.has_memory else ())]
        results = self._run_whole(session, {**feeds, **past}, (*names, *state_names), keep)
        lengths = dict(self._lengths)
        for pair in self._pairs.values():
            if pair.axis is not None:
                lengths[growing_dim(self._specs[pair.input], pair)] = results[pair.output].shape[pair.axis]
        self._check_lengths(lengths)
        for pair in self._pairs.values():
            self._carry(pair, results[pair.output], max(lengths.values(), default=0), lengths)
        self._lengths = lengths
        return Outputs({name: results[name] for name in names})

    def _run_whole(
        self, session: Session, feeds: Mapping[str, Any], names: Sequence[str], keep: Sequence[str]
    ) -> Mapping[str, Any]:
        """Run the model without a state, by the shortcut for shapes that ran before if there is one."""
        all_names = [spec.name for spec in session.signature.outputs]
        if keep or not set(names) <= set(all_names):
            return session.answer(session.request(feeds, None, tuple(dict.fromkeys(names)), keep))
        arrays = session.bind.plain(feeds)
        shortcut = None if arrays is None else session.shortcuts.get(tuple([array.shape for array in arrays]))
        if arrays is not None and shortcut is not None:
            with suppress(Exception):  # the full path raises it again, with details
                return dict(zip(all_names, shortcut(arrays)))
        return session.answer(session.request(feeds, arrays, None, False))

    def _bind(self, session: Session, feeds: Mapping[str, Any]) -> BoundInputs:
        """Check the inputs besides the state."""
        if self._binder is None or self._binder[0] is not session:
            specs = [spec for spec in session.inputs if spec.name not in self._pairs]
            driver = session.driver
            self._binder = session, InputBinder(specs, session.defaults, session.file, driver.home, driver.adopt)
        binder = self._binder[1]
        return binder(feeds, binder.plain(feeds))

    def _bind_sizes(self, bound: BoundInputs) -> dict[str, int]:
        """Return the sizes that inputs show, and those given for the state; InputError if they contradict."""
        sizes: dict[str, int] = {}
        for name, axis, symbol in self._shown:
            content: Any = bound.arrays.get(name)
            if has_shape(content):
                sizes.setdefault(symbol, content.shape[axis])
        for name, size in self._capacity.items():
            if name not in self._lengths and sizes.setdefault(name, size) != size:
                problem = f"{name!r} is {sizes[name]} in this run and {size} in the capacity of the state"
                raise InputError(problem, file=self._model.file)
        return sizes

    def _check_lengths(self, lengths: Mapping[str, int]) -> None:
        """Raise InputError if a length exceeds the capacity."""
        for name, length in lengths.items():
            room = self._capacity[name]
            if length > room:
                problem = (
                    f"the state is full: it holds {self._lengths[name]:,} of {room:,} along {name!r}, and this run "
                    f"needs {length:,}"
                )
                hint = "make a state with a larger capacity, or forget elements with state.truncate"
                raise InputError(problem, file=self._model.file, hint=hint)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _prepare(self, session: Session, held_names: frozenset[str], sizes: Mapping[str, int]) -> None:
        """Allocate what is not there yet, and give the inputs in `held_names` room to grow in place."""
        fixed_sizes = {name: sizes[name] for name in self._own_dims if name in sizes}
        if self._prepared == (held_names, fixed_sizes):
            return
        for name, pair in self._pairs.items():
            shape = self._shape(name, sizes, in_place=name in held_names)
            content = self._contents.get(name)
            if content is None:
                dtype = self._specs[name].dtype
                assert dtype is not None
                self._contents[name] = self._place(np.zeros(shape, dtype), session)
                continue
            if pair.axis is not None and (name in held_names) != (name in self._buffers):
                exact = self._exact_array(name)
                content = exact
                if name in held_names:
                    content = np.zeros(shape, exact.dtype)
                    content[first_elements(pair.axis, exact.shape[pair.axis])] = exact
                self._contents[name] = self._place(content, session)
            self._check_shape(name, self._contents[name].shape, shape, session)
        self._buffers = frozenset(name for name in held_names if self._pairs[name].axis is not None)
        self._prepared = held_names, fixed_sizes

    def _list_own_dims(self) -> Iterator[str]:
        """List the dims that the shapes of the state depend on, besides those that grow."""
        shown = {symbol for _, _, symbol in self._shown}
        for name, pair in self._pairs.items():
            after = self._results[name].type.shape or ()
            for axis, dim in enumerate(self._specs[name].type.shape or ()):
                if axis != pair.axis:
                    yield from dims.symbol_names(dim)
                    if not dims.symbol_names(dim) <= shown and axis < len(after):
                        yield from dims.symbol_names(after[axis])

    def _shape(self, name: str, sizes: Mapping[str, int], *, in_place: bool) -> tuple[int, ...]:
        """Return the shape of an input; a size that no input shows is that of the output in which it comes back."""
        spec, pair = self._specs[name], self._pairs[name]
        known_sizes = {**sizes, **self._lengths}
        shape = []
        for axis, dim in enumerate(spec.type.shape or ()):
            if axis == pair.axis:
                grows = growing_dim(spec, pair)
                shape.append(self._capacity[grows] if in_place else self._lengths[grows])
                continue
            after = self._results[name].type.shape
            candidates = [dim, *([after[axis]] if after is not None and len(after) > axis else [])]
            size = next((size for size in candidates if dims.symbol_names(size) <= known_sizes.keys()), None)
            if size is None:
                problem = f"the size {str(dim)!r} of the state {name!r} does not follow from the inputs of the run"
                hint = f"pass it: model.state(capacity={{{str(dim)!r}: ...}})"
                raise InputError(problem, file=self._model.file, hint=hint)
            shape.append(dims.evaluate(size, known_sizes))
        return tuple(shape)

    def _check_shape(self, name: str, actual: Sequence[int], expected: Sequence[int], session: Session) -> None:
        """Raise InputError if a run has other sizes than the state, such as another batch."""
        spec, grows = self._specs[name], self._pairs[name].axis
        for axis, (size, needed) in enumerate(zip(actual, expected)):
            dim = (spec.shape or ())[axis] if spec.shape else axis
            if axis != grows and size != needed and name not in self._changed:
                problem = f"the state has {size} for {dim!r}, and this run {needed}"
                raise InputError(problem, file=session.file, hint="make a new state for other sizes: model.state(...)")

    def _place(self, array: Array, session: Session | None = None) -> Array | DeviceTensor:
        driver = (session or self._model.session()).driver
        return driver.place(array) if driver.has_memory else array

    def _host_array(self, name: str) -> Array:
        content = self._contents[name]
        return content.numpy() if isinstance(content, DeviceTensor) else content

    def _exact_array(self, name: str) -> Array:
        """Return the content without room."""
        array = self._host_array(name)
        axis = self._pairs[name].axis
        if name not in self._buffers or axis is None:
            return array
        return np.ascontiguousarray(
            array[first_elements(axis, self._lengths[growing_dim(self._specs[name], self._pairs[name])])]
        )

    def _carry(self, pair: StatePair, content: Any, length: int, lengths: Mapping[str, int]) -> None:
        """Take an output as the next input; an empty one leaves the state as it is, as in merged decoders."""
        old = self._contents[pair.input]
        if pair.axis is None:
            if content is old or (content.size == 0 and old.size):
                return
            self._changed[pair.input] = length
        elif pair.input in self._buffers:
            array = self._host_array(pair.input)
            count = lengths[growing_dim(self._specs[pair.input], pair)]
            array[first_elements(pair.axis, count)] = content.numpy() if isinstance(content, DeviceTensor) else content
            content = self._place(array)
        self._contents[pair.input] = content

    def _forget(self, name: str, axis: int, count: int) -> None:
        """Forget the elements after the first ones; kernels may read, but not use, those of shorter sequences."""
        content = self._contents[name]
        if name in self._buffers and name not in self._cleared:
            return
        if isinstance(content, np.ndarray) and name in self._buffers:
            content[elements_between(axis, count, content.shape[axis])] = 0
            return
        array = np.array(self._host_array(name))
        if name in self._buffers:
            array[elements_between(axis, count, array.shape[axis])] = 0
        else:
            array = np.ascontiguousarray(array[first_elements(axis, count)])
        self._contents[name] = self._place(array)

    def _restore(self, session: Session, held_names: frozenset[str]) -> None:
        """Move the content to new memory after a failed run, which may still be writing to the old one."""
        try:
            for name in held_names:
                exact = self._exact_array(name)
                axis = self._pairs[name].axis
                assert axis is not None
                array = np.zeros(self._contents[name].shape, exact.dtype)
                array[first_elements(axis, exact.shape[axis])] = exact
                self._contents[name] = self._place(array, session)
        except WeftError:  # the device is lost, and the state with it
            self._reset()

    def _reset(self) -> None:
        self._contents, self._buffers, self._changed, self._prepared = {}, frozenset(), {}, None
        self._lengths = dict.fromkeys(self._lengths, 0)

    def _take(self, other: State, arrays: Mapping[str, Array]) -> None:
        self._contents = {name: self._place(array) for name, array in arrays.items()}
        self._buffers, self._lengths, self._cleared = other._buffers, dict(other._lengths), other._cleared
        self._changed = dict(other._changed)

    def _check_content(self, name: str, array: Array, lengths: Mapping[str, int]) -> None:
        """Raise InputError if an array does not fit the model."""
        spec, pair = self._specs[name], self._pairs[name]
        shape = spec.type.shape or ()
        fits = array.dtype == spec.dtype and len(shape) == array.ndim
        fits = fits and all(not isinstance(dim, int) or dim == size for dim, size in zip(shape, array.shape))
        if fits and pair.axis is not None:
            fits = array.shape[pair.axis] == lengths[growing_dim(spec, pair)]
        if not fits:
            problem = f"the new content is {array.dtype}{list(array.shape)} for {spec}"
            raise InputError(problem, file=self._model.file, hint="take it from a state or run of this model")


def state_layout(executable: Executable) -> StateLayout:
    """Return the layout of the state of a program that holds one."""
    program = executable.program
    assert isinstance(program, CompiledProgram)
    assert program.state is not None
    return program.state
