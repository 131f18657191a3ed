"""TLS over HTTP and gRPC, and the log of a server."""

from __future__ import annotations

import io
import json
import logging
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest
from server import models
from waiting import PATIENCE

import weft.server
from weft.errors import InputError
from weft.server.log_format import JsonFormatter, TextFormatter
from weft.server.run import BackgroundServer, Listeners
from weft.server.settings import make_settings


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    return cert, key


def _start(path: Path, cert: Path, key: Path) -> BackgroundServer:
    listeners = Listeners(http=0, grpc=0, metrics=None, tls_cert=cert, tls_key=key)
    app = weft.server.app(path, device="cpu", poll=0)
    return BackgroundServer(app, listeners)


def test_tls(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    path = models.write_simple(tmp_path / "simple.onnx")
    with _start(path, cert, key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(verify=trusted) as http:
            assert http.get(f"{server.url}/v2/models/simple").json()["name"] == "simple"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/v2/health/live")  # the certificate is not trusted
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url.replace("https", "http") + "/v2/health/live")
        triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
        client = triton.InferenceServerClient(server.grpc_address, ssl=True, root_certificates=str(cert))
        x = np.arange(16, dtype=np.int32)[None]
        inputs = []
        for name in ("INPUT0", "INPUT1"):
            tensor = triton.InferInput(name, [1, 16], "INT32")
            tensor.set_data_from_numpy(x)
            inputs.append(tensor)
        np.testing.assert_array_equal(client.infer("simple", inputs).as_numpy("OUTPUT0"), x + x)
        client.close()


def test_wrong_certificates_are_refused(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    path = models.write_simple(tmp_path / "simple.onnx")
    with pytest.raises(InputError, match="both"):
        Listeners(tls_cert=cert)
    with pytest.raises(InputError, match="no file"):
        Listeners(tls_cert=cert, tls_key=tmp_path / "none.pem")
    with pytest.raises(InputError, match=r"key\.pem"):
        _start(path, key, key)


def _log(formatter: logging.Formatter, path: Path) -> str:
    """Return what a server logs of one request that succeeds, and one that fails."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.getLogger("weft.server")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with weft.server.start(path, grpc=None, device="cpu", access_log=True) as server:
            httpx.get(f"{server.url}/v2/models/simple", headers={"X-Request-Id": "first"})
            httpx.post(f"{server.url}/v2/models/simple/infer", content=b"{", headers={"X-Request-Id": "second"})
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return stream.getvalue()


def test_json_log(tmp_path: Path) -> None:
    lines = _log(JsonFormatter(), models.write_simple(tmp_path / "simple.onnx")).splitlines()
    records = {record.get("request_id"): record for record in map(json.loads, lines)}
    assert records["first"]["path"] == "/v2/models/simple"
    assert records["first"]["status"] == 200
    assert records["second"]["status"] == 400
    assert any("is ready on cpu" in record["message"] for record in map(json.loads, lines))


def test_text_log(tmp_path: Path) -> None:
    text = _log(TextFormatter(), models.write_simple(tmp_path / "simple.onnx"))
    assert "POST /v2/models/simple/infer 400 in" in text
    assert "[second]" in text


def test_settings_do_not_show_the_key() -> None:
    assert "hidden" not in repr(make_settings({"api_key": "hidden"}))
