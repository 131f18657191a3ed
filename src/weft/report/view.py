"""`weft.view`: write a model as one HTML page with its graph, weights, kernels and measured times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import DeviceError, InputError, WeftError, short_repr
from weft.frontend import copy_model, read_model
from weft.frontend.outline import Outline, read_outline
from weft.frontend.source import OpenedModel
from weft.loading import check_sizes, load, open_graph
from weft.report.compiled_facts import collect_facts
from weft.report.html import render_page
from weft.report.measured import MeasuredRun, read_measurements
from weft.report.model_map import map_model
from weft.runtime.model import Model
from weft.runtime.model_files import is_defined
from weft.runtime.options import USUAL_PRECISION, LoadOptions, Precision
from weft.runtime.profile import Profile
from weft.runtime.random_inputs import random_inputs

if TYPE_CHECKING:
    from weft.runtime.policy import DeviceOption

    _Path = Path
else:
    _Path = type(Path())  # before Python 3.12, only the class for this platform can be subclassed

MEASURED_RUNS = 5
FRAME_HEIGHT = 640  # pixels in a notebook
STYLES = ("common.css", "view.css")
SCRIPTS = ("common.js", "layout.js", "scene.js", "drawing.js", "panel.js", "view.js")


class PagePath(_Path):
    """The path of a page; notebooks show the page itself."""

    def _repr_html_(self) -> str | None:
        if not self.is_file():
            return None
        page = escape(self.read_text(encoding="utf-8"))
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:1px solid rgba(128,128,128,.5)"
        return f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{page}"></iframe>'


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
    """Write a page that shows a model, and return its path. In a notebook, the result shows the page.

    source: what `weft.load` takes, or a loaded model. A model that cannot be compiled is shown with the reason.
    path: the file to write; by default it is named after the model, in the current folder.
    profile: a result of `model.profile()`, or a JSON file of one: nodes then show their time, memory and device.
    measure: profile the model now, on random inputs.
    device, precision: what kernels are shown for; by default those of a loaded model.
    sizes: of dynamic dims, by name.
    open: whether to open the page in a browser.
    """
    file = PagePath(page_path(source, path))
    data = view_data(
        source, profile=profile, measure=measure, device=device, precision=precision, sizes=check_sizes(sizes)
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(data_page(data), encoding="utf-8")
    except OSError as error:
        raise InputError(f"the page cannot be written to {file}: {error.strerror}", hint="name another file") from error
    if open:
        import webbrowser

        webbrowser.open(file.resolve().as_uri())
    return file


def data_page(data: Mapping[str, Any]) -> str:
    """Return the HTML for the result of `view_data`."""
    return render_page("view.html", data["title"], data, STYLES, SCRIPTS)


def view_data(
    source: Any,
    *,
    profile: Profile | MeasuredRun | str | PathLike[str] | None = None,
    measure: bool = False,
    device: DeviceOption | None = None,
    precision: Precision | None = None,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the data of the page, for JSON."""
    measured = None if profile is None else read_measurements(profile)
    changed_weights: Mapping[str, Any] = {}
    loaded = source if isinstance(source, Model) else None
    if loaded is not None:
        files = loaded.pool.files
        opened, changed_weights = copy_model(files.opened), files.changed
        device = device or loaded.device
        precision = precision or loaded.pool.options.precision
    else:
        opened = copy_model(open_graph(source))
    model_outline = _read_outline(opened)
    page_device = device or (measured.device if measured is not None else "auto")
    try:
        facts = collect_facts(opened, _load_options(page_device, precision), sizes or {})
    except DeviceError:
        if device is not None:
            raise
        facts = collect_facts(opened, _load_options("auto", precision), sizes or {})  # profiled on another machine
    if facts.problem is None:
        _check_sizes(sizes or {}, facts.sizes, opened.file)
    if measure and measured is None and facts.problem is None:
        model = loaded or load(opened, device=page_device, precision=precision or USUAL_PRECISION)
        inputs = random_inputs(model, shapes=sizes)
        measured = read_measurements(model.profile(inputs, repeat=MEASURED_RUNS))
        facts = replace(facts, sizes={**facts.sizes, **_dynamic_sizes(model, inputs)})
    title = Path(opened.file).name or opened.file
    if facts.problem is not None:
        facts = replace(facts, problem=facts.problem.replace(opened.file, title))  # pages are shared: no local folders
    data = map_model(model_outline, facts, measured, changed_weights)
    return {"title": title, "size": opened.size, "external": facts.external_bytes, **data}


def _load_options(device: DeviceOption, precision: Precision | None) -> LoadOptions:
    return LoadOptions(device=device, precision=precision or USUAL_PRECISION, cache=False)


def _check_sizes(sizes: Mapping[str, int], dynamic: Mapping[str, int], file: str) -> None:
    unknown = sorted(set(sizes) - set(dynamic))
    if unknown:
        hint = f"the dynamic dims are {', '.join(dynamic)}" if dynamic else "all dims of this model are fixed"
        raise InputError(f"the inputs have no dynamic dim {short_repr(unknown[0])}", file=file, hint=hint)


def _dynamic_sizes(model: Model, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of dynamic dims in some inputs."""
    shapes = [(spec.shape, getattr(inputs.get(spec.name), "shape", ())) for spec in model.inputs]
    return {dim: int(size) for dims, shape in shapes for dim, size in zip(dims or (), shape) if isinstance(dim, str)}


def _read_outline(opened: OpenedModel) -> Outline:
    try:
        return read_outline(opened, is_defined)
    except WeftError:
        read_model(opened, is_defined=is_defined)  # raises an error that says what kind of file it is
        raise


def page_path(source: Any, path: str | PathLike[str] | None = None) -> Path:
    """Return `path`, or a file in the current folder that is named after the model."""
    if path is not None:
        try:
            return Path(path)
        except TypeError as error:
            raise InputError(f"path must be a path to save to, not a {type(path).__name__}") from error
    file = source.pool.file if isinstance(source, Model) else source
    stem = Path(file).stem if isinstance(file, (str, PathLike)) else ""
    return Path(f"{stem.strip('<>') or 'model'}.html")
