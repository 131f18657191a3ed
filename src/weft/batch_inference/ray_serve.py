"""`weft.ray_deployment`: a model as a deployment of Ray Serve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.batch_inference.arrow_columns import widen
from weft.batch_inference.optional_packages import import_package
from weft.batch_inference.shipped_model import ShippedModel, Shipping, ship_model
from weft.errors import InputError, WeftError, short_repr
from weft.readers import arrays

if TYPE_CHECKING:
    from weft.ir.specs import TensorSpec


class ModelReplica:
    """A replica of a deployment: the model, and requests by handle and by HTTP.

    Requests that arrive together run concurrently on the model's threads. They are not joined to batches, since Ray
    Serve spreads them over replicas, and by default sends five at a time to each.
    """

    def __init__(self, shipped: ShippedModel) -> None:
        self._model = shipped.load()
        self._specs = {spec.name: spec for spec in (*self._model.inputs, *self._model.defaults)}

    async def __call__(self, request: Any) -> Any:
        """Return outputs by name, for arrays by name (`handle.remote({"x": array})`) or for an HTTP request."""
        if not hasattr(request, "scope"):  # of HTTP requests, which are mappings, too
            return await self._model.run_async(request)
        from starlette.responses import JSONResponse

        try:
            content = await request.json()
        except ValueError as error:
            return JSONResponse({"error": f"the body is not JSON: {error}"}, 400)
        try:
            outputs = await self._model.run_async(self._read_inputs(content))
            return JSONResponse({name: _to_json(name, array) for name, array in outputs.items()})
        except InputError as error:
            return JSONResponse({"error": str(error)}, 400)
        except WeftError as error:
            return JSONResponse({"error": str(error)}, 500)

    def _read_inputs(self, content: Any) -> dict[str, Any]:
        if not isinstance(content, dict):
            hint = "lists of numbers by the names of inputs"
            raise InputError(f"the body must be a JSON object, not {short_repr(content)}", hint=hint)
        unknown = [name for name in content if name not in self._specs]
        if unknown:
            hint = f"its inputs are {', '.join(self._specs)}"
            raise InputError(f"the model has no input {short_repr(unknown[0])}", hint=hint)
        return {name: _read_lists(lists, self._specs[name]) for name, lists in content.items()}


def _read_lists(lists: Any, spec: TensorSpec) -> Any:
    array = arrays.from_lists(lists, spec, f"input {spec.name!r}")
    return arrays.fit_to_input(array, spec, f"input {spec.name!r}")[0]


def _to_json(name: str, output: Any) -> Any:
    if not isinstance(output, np.ndarray) or output.dtype.kind == "c":
        raise InputError(f"output {name!r} has no form in JSON", hint="call the deployment by its handle")
    wide = widen(output)
    if wide.dtype.kind == "f" and not np.isfinite(wide).all():
        return plain_numbers(wide.tolist())
    return wide.tolist()


def plain_numbers(content: Any) -> Any:
    """Replace NaN and infinities by None, as JSON has none."""
    if isinstance(content, list):
        return [plain_numbers(each) for each in content]
    return content if math.isfinite(content) else None


def ray_deployment(model: Any, *, ship: Shipping = "auto", **options: Any) -> Any:
    """Return a model as a deployment of Ray Serve.

        deployment = weft.ray_deployment("model.onnx")
        handle = serve.run(deployment.options(num_replicas=2).bind())
        outputs = await handle.remote({"x": array})

    A handle takes arrays by the names of inputs, HTTP a JSON object of lists; both return outputs by name. Replicas
    load the model once and share one copy of its weights on each machine. Requests to a replica run concurrently.

    model: what `weft.load` takes, or a loaded model.
    ship: how the model gets to replicas, see `weft.batch`.
    options: options of `weft.load`.
    """
    serve = import_package("ray.serve", "weft.ray_deployment", "weft-onnx[ray]")
    shipped, _ = ship_model(model, ship, None, options)

    class Replica(ModelReplica):
        def __init__(self) -> None:
            super().__init__(shipped)

    return serve.deployment(Replica, name=Path(shipped.file).stem or "model")
