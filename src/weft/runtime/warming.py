"""One device serves while others get ready: compiled in the background, timed, and taken if they are faster.

The thread ends with its work, with the model, or with the process, at the next step of a compilation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from weakref import ReferenceType, ref

from weft.logs import DEVICES
from weft.runtime.choice import by_benchmark
from weft.runtime.devices import driver
from weft.runtime.model import Model
from weft.runtime.policy import Route
from weft.runtime.progress import Stages


class EndedError(BaseException):
    """Nobody waits any more for what a background thread does: no error that anybody on the way may handle."""


class BackgroundStages(Stages):
    """Progress that nobody sees, and which ends the work when the model or the process does."""

    def __init__(self, model: ReferenceType[Model]) -> None:
        super().__init__("warming", show=False)
        self._model = model

    def update(self, fraction: float, detail: str = "") -> None:  # noqa: ARG002
        if self._model() is None or not threading.main_thread().is_alive():
            raise EndedError


def soonest(way: Route, is_ready: Callable[[str], bool]) -> tuple[Route, tuple[str, ...]]:
    """The way with the device first that can serve soonest, and the devices that would be better, were they ready.

    That is the best one for which nothing is to be compiled, or one that works on the host's memory.
    """
    ready = next((device for device in way.devices if is_ready(device)), None)
    host = next((device for device in way.devices if not driver(device).has_memory), way.devices[0])
    first = ready or host
    better = way.devices[: way.devices.index(first)]
    if not better:
        return way, ()
    rest = tuple(device for device in way.devices if device != first)
    what = "compiled already" if ready else "on the host"
    return replace(way, devices=(first, *rest), said=f"{what}, while {', '.join(better)} gets ready"), better


def warm_in_background(model: Model, devices: Sequence[str]) -> threading.Thread | None:
    """Bring a model to other devices, one after the other; it moves to each that is faster than where it is.

    None where there is nothing to do, or the system gives no thread for it: then the model stays where it is.
    """
    if not devices:
        return None
    thread = threading.Thread(target=_warm, args=(ref(model), tuple(devices)), name="weft-warming")
    try:
        thread.start()
    except RuntimeError:
        DEVICES.warning("%s: there is no thread to be had for compiling in the background", model.file)
        return None
    return thread


def _warm(model: ReferenceType[Model], devices: Sequence[str]) -> None:
    progress = BackgroundStages(model)
    with suppress(EndedError):
        for device in devices:
            progress.update(0.0)
            _try(model, device, progress)


def _try(found: ReferenceType[Model], device: str, progress: Stages) -> None:
    """Compile a model for one more device, and have it move there if that is faster."""
    model = found()
    if model is None:
        return
    deployment, serving = model.deployment, model.device
    del model  # whoever drops it meanwhile ends this

    def ready(name: str) -> Callable[[], object]:
        trial = deployment.trial(name, progress)

        def run() -> object:
            progress.update(0.0)
            return trial()

        return run

    try:
        ranking = by_benchmark((device, serving), ready)
    except Exception as error:  # no data can be made up that the model takes
        DEVICES.warning("%s: %s cannot be timed, %s goes on: %s", deployment.opener.file, device, serving, error)
        return
    model, best = found(), ranking.entries[0]
    if model is not None and model.device == serving and best.device == device and best.seconds is not None:
        reason = ", ".join(f"{entry.device}: {entry.reason}" for entry in ranking.entries)
        model.move_to(device, f"it is ready, and faster ({reason})")
