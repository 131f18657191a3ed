"""`weft.view`: a model as one HTML page, with its graph, weights, kernels, and what was measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import DeviceError, InputError, WeftError, short_repr
from weft.frontend import copy_model, read_model
from weft.frontend.outline import Outline, read_outline
from weft.frontend.source import OpenedModel
from weft.loading import check_sizes, load, open_graph
from weft.report.compiled_facts import compiled_facts
from weft.report.html import page
from weft.report.measured import MeasuredRun, measured_run
from weft.report.model_map import model_map
from weft.runtime.model import Model
from weft.runtime.model_files import is_defined
from weft.runtime.options import USUAL_PRECISION, LoadOptions, Precision
from weft.runtime.profile import Profile
from weft.runtime.random_inputs import random_inputs

if TYPE_CHECKING:
    from weft.runtime.policy import DeviceOption

MEASURED_RUNS = 5
STYLES = ("common.css", "view.css")
SCRIPTS = ("common.js", "layout.js", "scene.js", "drawing.js", "panel.js", "view.js")


def view(
    source: Any,
    path: str | PathLike[str] | None = None,
    *,
    profile: Profile | MeasuredRun | str | PathLike[str] | None = None,
    measure: bool = False,
    device: DeviceOption | None = None,
    precision: Precision | None = None,
    sizes: Mapping[str, int] | None = None,
    open: bool = False,
) -> Path:
    """Write a page that shows a model, and return where it is.

    source: what `weft.load` takes, or a model that it gave. What cannot be compiled is shown with the reason.
    path: the page's file; without one it is named after the model and lies in the current folder.
    profile: what `model.profile()` gave, or a file of one (JSON): nodes then show their time, memory and device.
    measure: make such a profile now, with made-up inputs.
    device, precision: what kernels are shown for; those of the model where it was loaded already.
    sizes: of dynamic dims, by name.
    open: whether to show the page in a browser.
    """
    place = page_path(source, path)
    text = view_page(
        source, profile=profile, measure=measure, device=device, precision=precision, sizes=check_sizes(sizes)
    )
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"the page cannot be written to {place}: {error.strerror}", hint="name another file"
        ) from error
    if open:
        import webbrowser

        webbrowser.open(place.resolve().as_uri())
    return place


def view_page(
    source: Any,
    *,
    profile: Profile | MeasuredRun | str | PathLike[str] | None = None,
    measure: bool = False,
    device: DeviceOption | None = None,
    precision: Precision | None = None,
    sizes: Mapping[str, int] | None = None,
) -> str:
    """The page itself."""
    data = view_data(source, profile=profile, measure=measure, device=device, precision=precision, sizes=sizes)
    return data_page(data)


def data_page(data: Mapping[str, Any]) -> str:
    """The page of what `view_data` gives."""
    return page("view.html", data["title"], data, STYLES, SCRIPTS)


def view_data(
    source: Any,
    *,
    profile: Profile | MeasuredRun | str | PathLike[str] | None = None,
    measure: bool = False,
    device: DeviceOption | None = None,
    precision: Precision | None = None,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """All that the page shows, as JSON can say it."""
    measured = None if profile is None else measured_run(profile)
    changed: Mapping[str, Any] = {}
    loaded = source if isinstance(source, Model) else None
    if loaded is not None:
        files = loaded.pool.files
        opened, changed = copy_model(files.opened), files.changed
        device = device or loaded.device
        precision = precision or loaded.pool.options.precision
    else:
        opened = copy_model(open_graph(source))
    told = _outline(opened)
    wanted = device or (measured.device if measured is not None else "auto")
    try:
        facts = compiled_facts(opened, _options(wanted, precision), sizes or {})
    except DeviceError:
        if device is not None:
            raise
        facts = compiled_facts(opened, _options("auto", precision), sizes or {})  # it was measured elsewhere
    if facts.problem is None:
        _check_sizes(sizes or {}, facts.sizes, opened.file)
    if measure and measured is None and facts.problem is None:
        model = loaded or load(opened, device=wanted, precision=precision or USUAL_PRECISION)
        given = random_inputs(model, shapes=sizes)
        measured = measured_run(model.profile(given, repeat=MEASURED_RUNS))
        facts = replace(facts, sizes={**facts.sizes, **_sizes(model, given)})
    title = Path(opened.file).name or opened.file
    if facts.problem is not None:
        facts = replace(facts, problem=facts.problem.replace(opened.file, title))  # folders are nobody else's business
    return {"title": title, "size": opened.size, **model_map(told, facts, measured, changed)}


def _options(device: DeviceOption, precision: Precision | None) -> LoadOptions:
    return LoadOptions(device=device, precision=precision or USUAL_PRECISION, cache=False)


def _check_sizes(given: Mapping[str, int], known: Mapping[str, int], file: str) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        hint = f"the dynamic dims are {', '.join(known)}" if known else "all dims of this model are fixed"
        raise InputError(f"the inputs have no dynamic dim {short_repr(unknown[0])}", file=file, hint=hint)


def _sizes(model: Model, inputs: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of dynamic dims in some inputs."""
    shapes = [(spec.shape, getattr(inputs.get(spec.name), "shape", ())) for spec in model.inputs]
    return {dim: int(size) for dims, shape in shapes for dim, size in zip(dims or (), shape) if isinstance(dim, str)}


def _outline(opened: OpenedModel) -> Outline:
    try:
        return read_outline(opened, is_defined)
    except WeftError:
        read_model(opened, is_defined=is_defined)  # which can tell what the file is instead
        raise


def page_path(source: Any, path: str | PathLike[str] | None = None) -> Path:
    """Where the page of a model goes: to a path, or into the current folder."""
    if path is not None:
        try:
            return Path(path)
        except TypeError as error:
            raise InputError(f"a path to write to, not a {type(path).__name__}") from error
    file = source.pool.file if isinstance(source, Model) else source
    stem = Path(file).stem if isinstance(file, (str, PathLike)) else ""
    return Path(f"{stem.strip('<>') or 'model'}.html")
