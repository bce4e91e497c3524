"""Ask a Flower process for its health: `python -m fedtranscribe.flower.health 127.0.0.1:9095`.

`flower-superlink` and `flower-supernode` answer gRPC health checks under `--health-server-address`.
The exit code is all that a container's health check looks at.
"""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_SECONDS = 5.0


def is_healthy(address: str, timeout: float = _SECONDS) -> bool:
    """Whether a gRPC health service answers there that it serves."""
    # A proxy of the environment must not be asked for an address of this machine.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
        try:
            reply = check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError:
            return False
    return reply.status == health_pb2.HealthCheckResponse.SERVING


if __name__ == "__main__":
    sys.exit(0 if len(sys.argv) == 2 and is_healthy(sys.argv[1]) else 1)
