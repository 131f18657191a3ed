"""`weft serve`: answer requests over HTTP and gRPC."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from weft.cli import option_types, options, output
from weft.errors import InputError
from weft.quantities import format_bytes
from weft.runtime.environment import API_KEY, text_of

if TYPE_CHECKING:
    from weft.server.run import Server
    from weft.server.workers import Supervisor

PORTS = {"http": "HTTP", "grpc": "gRPC", "metrics": "metrics"}
EXAMPLES = (
    ("a model; http://127.0.0.1:8000 shows its status", "weft serve model.onnx"),
    ("a language model, for OpenAI's clients", "weft serve folder"),
    ("a folder with models, for other machines", "weft serve models/ --host 0.0.0.0"),
    ("two models by names of your choice", "weft serve small=a.onnx large=b.onnx --max-wait 5ms"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="answer requests over HTTP and gRPC",
        description="Serve models by the Open Inference Protocol (clients of Triton and KServe), and language models "
        "by OpenAI's. Rows of several requests run together as one batch, with the same results. Files that change are "
        "loaded again. Ctrl-C and SIGTERM end the server after it has answered what has arrived.",
    )
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="an ONNX file, a folder of a language model, or a folder with models (NAME.onnx, "
        "NAME/VERSION/model.onnx); NAME=PATH names a model",
    )
    _add_addresses(parser.add_argument_group("addresses"))
    _add_batching(parser.add_argument_group("batching"))
    _add_limits(parser.add_argument_group("limits"))
    _add_operation(parser.add_argument_group("operation"))
    options.add_loading(parser, without=("memory_limit", "strict"))
    options.add_json(parser, "print the addresses as JSON when the server is ready")


def _add_addresses(group: Any) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 is all (default 127.0.0.1)")
    for name, port, what in (("http", 8000, "HTTP"), ("grpc", 8001, "gRPC"), ("metrics", 8002, "metrics")):
        group.add_argument(
            f"--{name}",
            type=options.as_option_type(_parse_port),
            default=port,
            metavar="PORT",
            help=f"port of {what}; 0 is any free one"
            + (", off is none" if name != "http" else "")
            + f" (default {port})",
        )
    group.add_argument("--tls-cert", metavar="FILE", help="certificate in PEM format, with its chain: serve HTTPS")
    group.add_argument("--tls-key", metavar="FILE", help="key of the certificate")
    group.add_argument(
        "--api-key", metavar="KEY", help=f"requests must carry this key as a bearer token (default: {API_KEY.name})"
    )
    group.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let browsers use the server from pages of this origin, * for all; may be repeated",
    )


def _add_batching(group: Any) -> None:
    group.add_argument(
        "--max-batch", type=option_types.count, metavar="N", help="most rows of a run (default: measured at the start)"
    )
    group.add_argument(
        "--max-wait",
        type=duration,
        default=0.002,
        metavar="TIME",
        help="longest wait of a request for others, while there are others (default 2ms)",
    )
    group.add_argument("--no-batching", action="store_true", help="run each request alone")


def _add_limits(group: Any) -> None:
    group.add_argument(
        "--memory-limit",
        type=options.memory_size,
        metavar="BYTES",
        help="memory of all models and runs, for instance 4GB (default: 80%% of free memory)",
    )
    group.add_argument(
        "--max-queue",
        type=option_types.count,
        default=1000,
        metavar="N",
        help="most requests of a model that wait; others get status 429 (default 1000)",
    )
    group.add_argument("--timeout", type=duration, metavar="TIME", help="longest time of a request (default: no limit)")
    group.add_argument(
        "--max-body",
        type=options.memory_size,
        default=256 << 20,
        metavar="BYTES",
        help="largest request (default 256MiB)",
    )
    group.add_argument(
        "--max-length",
        type=option_types.count,
        metavar="N",
        help="most tokens of prompt and answer together, for language models",
    )


def _add_operation(group: Any) -> None:
    group.add_argument(
        "--workers",
        type=option_types.count,
        default=1,
        metavar="N",
        help="processes that share the ports; weights are in memory once (default 1)",
    )
    group.add_argument(
        "--poll",
        type=duration,
        default=2.0,
        metavar="TIME",
        help="look for changed files this often, 0 never (default 2s)",
    )
    group.add_argument("--no-loading", action="store_true", help="do not let clients load and unload models")
    group.add_argument(
        "--drain",
        type=duration,
        default=30.0,
        metavar="TIME",
        help="longest time to answer requests at the end (default 30s)",
    )
    group.add_argument(
        "--drain-delay",
        type=duration,
        default=0.0,
        metavar="TIME",
        help="go on taking requests for this long after SIGTERM, while /v2/health/ready says no (default 0)",
    )
    group.add_argument("--access-log", action="store_true", help="log each request")
    group.add_argument("--log-format", choices=("text", "json"), default="text", help="form of the log (default text)")


def _parse_port(text: str) -> int | None:
    if text == "off":
        return None
    if not text.isascii() or not text.isdecimal() or int(text) >= 1 << 16:
        raise InputError(f"{text!r} is not a port", hint="a number from 0 to 65535, or off")
    return int(text)


def _parse_duration(text: str) -> float:
    """Return seconds of a text such as "2ms", "30s", "5m" or "0.5"."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "s"
    try:
        seconds = float(number) * units[unit]
    except (ValueError, KeyError):
        raise InputError(f"{text!r} is not a time", hint="for instance 2ms, 0.5s or 5m") from None
    if not 0 <= seconds < 1e9:
        raise InputError(f"{text!r} is not a time", hint="for instance 2ms, 0.5s or 5m")
    return seconds


duration = options.as_option_type(_parse_duration)


SAME_NAMES = (  # of options and of keywords of `weft.serve`
    *("host", "http", "grpc", "metrics", "tls_cert", "tls_key", "drain", "drain_delay", "workers", "log_format"),
    *("max_batch", "max_wait", "max_queue", "memory_limit", "max_body", "poll", "access_log"),
    *("device", "threads", "precision", "prefer", "cache", "trusted"),
)


def run(args: argparse.Namespace) -> int:
    from weft.server.log_format import configure_log
    from weft.server.run import serve

    configure_log(args.log_format)
    keywords = {name: getattr(args, name) for name in SAME_NAMES if getattr(args, name) is not None or name in PORTS}
    if args.max_length is not None:
        keywords["max_length"] = args.max_length
    serve(
        args.models,
        batching=not args.no_batching,
        timeout=args.timeout or None,
        api_key=args.api_key or text_of(API_KEY),
        allow_loading=not args.no_loading,
        allow_origins=tuple(args.allow_origin),
        on_ready=_print_addresses if args.json else _print_ready,
        **keywords,
    )
    return 0


def _print_addresses(server: Server | Supervisor) -> None:
    """Print the addresses for programs."""
    output.print_json(server.listeners.addresses(server.ports))
    sys.stdout.flush()


def _print_ready(server: Server | Supervisor) -> None:
    """Print where the server listens, and what it serves."""
    from weft.server.run import Server

    if isinstance(server, Server):
        rows = []
        for served in server.app.repository.served():
            batch = "generates text" if served.generator is not None else f"up to {served.rows} rows a run"
            rows.append((served.name, served.version, served.device, format_bytes(served.memory), batch))
        console = output.error_console()
        console.print(output.table("", ("model", "version", "device", "memory", "batches"), rows))
    for name, address in server.listeners.addresses(server.ports).items():
        sys.stderr.write(f"{PORTS[name]:<8} {address}\n")
    sys.stderr.flush()
