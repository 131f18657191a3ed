"""`weft.load(..., warm="background")`: serve on one device while others are compiled, and switch to them if faster.

The background thread ends with its work, with the model or with the process, at the next step of a compilation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from weakref import ReferenceType, ref

from weft.logs import DEVICES
from weft.runtime.devices import driver
from weft.runtime.model import Model
from weft.runtime.policy import Route
from weft.runtime.progress import Stages
from weft.runtime.ranking import rank_by_benchmark
from weft.runtime.session_pool import SessionPool


class EndedError(BaseException):
    """Ends a background thread whose result is no longer needed; nothing on the call stack may catch it."""


class BackgroundStages(Stages):
    """Progress that is not shown, and that ends the work when the model or the process ends."""

    def __init__(self, model: ReferenceType[Model]) -> None:
        super().__init__("warming", show=False)
        self._model = model

    def update(self, fraction: float, detail: str = "") -> None:  # noqa: ARG002
        if self._model() is None or not threading.main_thread().is_alive():
            raise EndedError


def load_warm(pool: SessionPool, route: Route) -> Model:
    """Load a model on the device that is ready first, and compile it for better ones in the background."""
    first_route, better = put_ready_device_first(route, lambda device: not pool.needs_compilation(device))
    model = Model(pool, first_route)
    if pool.options.sample is not None:
        model.session().request(pool.options.sample)  # raises errors of the sample
    compile_in_background(model, better)
    return model


def put_ready_device_first(route: Route, is_ready: Callable[[str], bool]) -> tuple[Route, tuple[str, ...]]:
    """Return the route with the device first that can serve soonest, and the better devices it precedes.

    That is the best device that needs no compilation, or one that uses the host's memory.
    """
    ready = next((device for device in route.devices if is_ready(device)), None)
    host = next((device for device in route.devices if not driver(device).has_memory), route.devices[0])
    first = ready or host
    better = route.devices[: route.devices.index(first)]
    if not better:
        return route, ()
    others = tuple(device for device in route.devices if device != first)
    state = "compiled already" if ready else "on the host"
    reason = f"{state}, while {', '.join(better)} gets ready"
    return replace(route, devices=(first, *others), explicit_reason=reason), better


def compile_in_background(model: Model, devices: Sequence[str]) -> threading.Thread | None:
    """Compile a model for devices, one after the other; it switches to each that is faster than its current one.

    Returns None if there is nothing to do, or no thread can be started: then the model stays where it is.
    """
    if not devices:
        return None
    thread = threading.Thread(target=_compile_all, args=(ref(model), tuple(devices)), name="weft-warming")
    try:
        thread.start()
    except RuntimeError:
        DEVICES.warning("%s: no thread can be started to compile in the background", model.file)
        return None
    return thread


def _compile_all(model: ReferenceType[Model], devices: Sequence[str]) -> None:
    progress = BackgroundStages(model)
    with suppress(EndedError):
        for device in devices:
            progress.update(0.0)
            _try_device(model, device, progress)


def _try_device(reference: ReferenceType[Model], device: str, progress: Stages) -> None:
    """Compile a model for one more device, and switch to it if it is faster."""
    model = reference()
    if model is None:
        return
    pool, current = model.pool, model.device
    del model  # a model that is dropped meanwhile ends this thread

    def prepare(name: str) -> Callable[[], object]:
        trial = pool.prepare_trial(name, progress)

        def run() -> object:
            progress.update(0.0)
            return trial()

        return run

    try:
        ranking = rank_by_benchmark((device, current), prepare)
    except Exception as error:  # the model takes no random inputs
        DEVICES.warning("%s: %s cannot be timed, %s stays in use: %s", pool.file, device, current, error)
        return
    model, best = reference(), ranking.entries[0]
    if model is not None and model.device == current and best.device == device and best.seconds is not None:
        reason = ", ".join(f"{entry.device}: {entry.reason}" for entry in ranking.entries)
        model.move_to(device, f"it is ready, and faster ({reason})")
