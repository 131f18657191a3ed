"""The Open Inference Protocol over gRPC, with Triton's extensions, and gRPC's health checks.

`start.py` starts a server, `service.py` answers single calls and `stream.py` streams of requests, `requests.py` reads
and writes the messages of `messages.py`. What a request means is in `v2/`, for HTTP too.
"""

from weft.server.grpc.start import GrpcServer, start_grpc

__all__ = ["GrpcServer", "start_grpc"]
