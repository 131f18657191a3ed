"""`Config`: the genai_config.json of a folder, with the changes of a program."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from weft.compat.onnxruntime_genai.errors import convert_errors, unsupported_error
from weft.generation.folder import open_folder
from weft.generation.genai_folder import GENAI_CONFIG
from weft.generation.model_folder import ModelFolder

_log = logging.getLogger("weft.compat")
_DEVICES = {
    "cpu": "cpu",
    "cuda": "cuda",
    "nvtensorrtrtx": "cuda",
    "trt-rtx": "cuda",
    "dml": "webgpu",
    "webgpu": "webgpu",
    "migraphx": "webgpu",
    "rocm": "webgpu",
}
"""Devices of weft by the names of providers, in lower case."""


class Config:
    """The configuration of a model's folder."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(fspath(path))
        with convert_errors():
            self._folder = open_folder(self.path)
        file = self._folder.path / GENAI_CONFIG
        self._fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        decoder = _section(self._fields, "model", "decoder", "session_options")
        self._providers: dict[str, dict[str, str]] = {}
        for entry in decoder.get("provider_options") or ():
            for name, options in entry.items():
                self._providers[name] = {key: str(value) for key, value in (options or {}).items()}

    @staticmethod
    def from_package_ep(config_path: str, ep: str) -> Config:
        raise unsupported_error("Config.from_package_ep", f"open the folder of one variant ({config_path}, {ep})")

    def append_provider(self, name: str) -> None:
        self._providers.setdefault(name, {})

    def set_provider_option(self, name: str, key: str, value: str) -> None:
        self._providers.setdefault(name, {})[key] = value

    def clear_providers(self) -> None:
        self._providers.clear()

    def overlay(self, text: str) -> None:
        """Put fields of a JSON object on top of those of the file."""
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise RuntimeError(f"the overlay is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise RuntimeError("the overlay is not a JSON object")
        _merge(self._fields, fields)

    def add_model_data(self, name: str, data: object) -> None:  # noqa: ARG002
        raise unsupported_error("Config.add_model_data", "weft reads the files of the folder")

    def remove_model_data(self, name: str) -> None:  # noqa: ARG002
        raise unsupported_error("Config.remove_model_data", "weft reads the files of the folder")

    def set_decoder_provider_options_hardware_device_type(self, provider: str, device_type: str) -> None:
        _log.info("the hardware device type %s of %s has no effect", device_type, provider)

    def set_decoder_provider_options_hardware_device_id(self, provider: str, device_id: int) -> None:
        self.set_provider_option(provider, "device_id", str(device_id))

    def set_decoder_provider_options_hardware_vendor_id(self, provider: str, vendor_id: int) -> None:
        _log.info("the hardware vendor %s of %s has no effect", vendor_id, provider)

    def clear_decoder_provider_options_hardware_device_type(self, provider: str) -> None:
        """Do nothing, as there is nothing to clear."""

    def clear_decoder_provider_options_hardware_device_id(self, provider: str) -> None:
        self._providers.get(provider, {}).pop("device_id", None)

    def clear_decoder_provider_options_hardware_vendor_id(self, provider: str) -> None:
        """Do nothing, as there is nothing to clear."""

    # -- for weft ----------------------------------------------------------------------------------------------------

    def search_options(self) -> Mapping[str, Any]:
        """Return the fields of `search`."""
        return _section(self._fields, "search")

    def model_fields(self) -> Mapping[str, Any]:
        """Return the fields of `model`."""
        return _section(self._fields, "model")

    def describe_folder(self) -> ModelFolder:
        """Return the folder with the values of the configuration."""
        model = self.model_fields()
        changes: dict[str, Any] = {}
        if "eos_token_id" in model:
            end = model["eos_token_id"]
            changes["end_tokens"] = tuple(end) if isinstance(end, list) else (end,)
        for field, name in (
            ("context_length", "context_length"),
            ("pad_token", "pad_token_id"),
            ("start_token", "bos_token_id"),
        ):
            if isinstance(model.get(name), int):
                changes[field] = model[name]
        return replace(self._folder, **changes)

    def choose_device(self) -> str:
        """Return the device of weft for the first provider; `cpu` without providers."""
        for name, options in self._providers.items():
            device = _DEVICES.get(name.lower().removesuffix("executionprovider"))
            if device is None:
                names = ", ".join(sorted(_DEVICES))
                raise RuntimeError(f"Unknown provider name '{name}'; weft has devices for {names}")
            number = options.get("device_id", "0")
            return device if device == "cpu" or number == "0" else f"{device}:{number}"
        return "cpu"


def _section(fields: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        fields = fields.get(name) or {}
    return fields


def _merge(fields: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(fields.get(name), dict):
            _merge(fields[name], value)
        else:
            fields[name] = value
