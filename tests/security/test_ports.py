"""Every port that a process of the service listens on, by connecting to it as a stranger would."""

import importlib
import pkgutil
from collections import Counter

import grpc
import httpx
import psutil
import ray.core.generated

from tests.service.running import Server


def methods_of_ray() -> list[str]:
    """Return every method that Ray's protocols have."""
    methods = []
    for module in pkgutil.walk_packages(ray.core.generated.__path__, "ray.core.generated."):
        if module.name.endswith("_pb2"):
            services = importlib.import_module(module.name).DESCRIPTOR.services_by_name.values()
            methods += [f"/{service.full_name}/{one.name}" for service in services for one in service.methods]
    return methods


def test_no_port_is_open_to_other_machines(server: Server) -> None:
    assert len(server.ports()) > 10
    assert {address.removeprefix("::ffff:") for address, _ in server.ports()} <= {"127.0.0.1", "::1"}
    assert server.ports_open_to_others() == set()


def test_no_call_of_rays_is_answered_without_the_runs_token(server: Server) -> None:
    """Who may call Ray's ports runs code, and other users of this machine reach the loopback interface."""
    methods = methods_of_ray()
    assert len(methods) > 100
    refused: Counter[str] = Counter()
    for process, _, port in server.listening():
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method in methods:
                try:
                    channel.unary_unary(method)(b"", timeout=20)
                except grpc.RpcError as error:
                    code = error.code()
                else:
                    code = grpc.StatusCode.OK
                if code == grpc.StatusCode.UNAVAILABLE:  # not gRPC
                    break
                allowed = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)
                assert code in allowed, (process, method)
                refused[method.split("/")[1]] += code == grpc.StatusCode.UNAUTHENTICATED
    for service in ("CoreWorkerService", "NodeManagerService", "InternalKVGcsService", "ReporterService"):
        assert refused[f"ray.rpc.{service}"], f"{service} was not found, or answered"


def test_no_page_of_rays_is_answered_without_the_runs_token(server: Server) -> None:
    asked = set()
    for process, _, port in server.listening():
        try:
            name = " ".join(process.cmdline())
            is_ours = process.name() == "haproxy" or "ServeReplica" in name
        except psutil.NoSuchProcess:  # it ended meanwhile
            continue
        for path in (
            "/",
            "/metrics",
            "/api/version",
            "/api/jobs/",
            "/api/healthz",
            "/api/serve/applications/",
        ):
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=20)
            except httpx.HTTPError:  # not HTTP
                break
            asked.add(port)
            assert is_ours or answer.status_code == 401 or path == "/api/healthz", (name, path, answer)
    assert len(asked) >= 3
