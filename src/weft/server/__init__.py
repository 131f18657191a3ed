"""Serve models over HTTP and gRPC: `weft.server.app(models)` is an ASGI app, `weft.serve(models)` runs one.

```
HTTP                                    gRPC
   │  asgi.py, http.py                     │  grpc/service.py
   ▼                                       │
Request     routes, access, limits         │
   │  v2/, openai/, pages.py               │
   ▼                                       ▼
arrays by name, or a prompt
   │  repository.py                       names, versions, loading and reloading
   ▼
ServedModel                               counters, sequences (sequences.py)
   │  batching.py                         joins requests into batches, admits them by memory (memory.py)
   ▼
Model.run, Generator
```

Imports of handlers go downward: `served_model.py` knows no protocol but the datatypes of `v2/interface.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.server.asgi import Application
    from weft.server.discovery import Models
    from weft.server.run import BackgroundServer, start
    from weft.server.settings import ServerSettings

__all__ = ["BackgroundServer", "ServerSettings", "app", "start"]

_LAZY = {
    "BackgroundServer": "weft.server.run",
    "ServerSettings": "weft.server.settings",
    "start": "weft.server.run",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'weft.server' has no attribute {name!r}")


def app(models: Models, **settings: Any) -> Application:
    """Return an ASGI app that serves models: `uvicorn.run(weft.server.app("model.onnx"))`.

    models: a path or a loaded model, a list of them, or a dict by name. A path is a model, the folder of a language
        model, or a folder of models.
    settings: see `weft.serve`, besides its ports, TLS and workers; and options of `weft.load`, such as device.
    """
    from weft.server.asgi import Application
    from weft.server.discovery import read_catalog
    from weft.server.settings import make_settings

    return Application(read_catalog(models), make_settings(settings))
