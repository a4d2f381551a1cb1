"""A stand-in for the Hugging Face hub: what huggingface_hub asks of it for a download, and its errors."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".onnx", ".h5", ".msgpack")
"""Endings of files that the hub keeps in its large-file storage (LFS)."""


@dataclass
class Repository:
    """A repository: files of each commit, and the commit of each branch and tag.

    reader: the only token that may read it. gated: everybody may see it, and only `reader` download it.
    fault: a status or nothing ("silent") that answers everything, or what happens to large
        files ("truncated").
    """

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    reader: str | None = None
    gated: bool = False
    fault: int | str | None = None


@dataclass
class Hub:
    """A running stand-in.

    storage: the address of its large files, another origin, as on the real hub. asked: the models that its
        API was asked for. downloads: the files that were sent. large: the repository of
        each large one. leaks: tokens that the storage was shown.
        is_silent: is set once somebody waits for a silent repository.
    """

    url: str = ""
    storage: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    downloads: list[str] = field(default_factory=list)
    large: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    is_silent: Event = field(default_factory=Event)
    closed: Event = field(default_factory=Event)

    def add(self, name: str, *directories: Path, **options: Any) -> Repository:
        """Add a repository whose commits hold the files of these directories; the last one is main's.

        The tags are v1, v2 and so on.
        """
        commits, refs = {}, {}
        for number, directory in enumerate(directories, start=1):
            sha = hashlib.sha1(f"{name} {number}".encode()).hexdigest()
            files = (path for path in directory.rglob("*") if path.is_file())
            commits[sha] = {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}
            refs[f"v{number}"] = refs["main"] = sha
        self.repositories[name] = Repository(commits, refs, **options)
        return self.repositories[name]


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A stand-in that answers on two free ports."""
    hub = Hub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub)) for _ in range(2)]
    hub.url, hub.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    for server in servers:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.closed.set()
        for server in servers:
            server.shutdown()
            server.server_close()


class _Refused(Exception):
    """An error of the hub: a status, the code by which the client knows it, and a text."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *arguments: Any) -> None:
        self.hub = hub
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        try:
            status, headers, body = self._route(path)
        except _Refused as refused:
            status, body = refused.status, json.dumps({"error": str(refused)}).encode()
            headers = {"X-Error-Code": refused.code, "X-Error-Message": str(refused)}
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _route(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.hub.asked.append(match[1])
            repository = self._repository(match[1])
            if repository.fault == "silent":
                self.hub.is_silent.set()
                self.hub.closed.wait()
            commit = self._commit(repository, match[2] or "main")
            contents = repository.commits[commit]
            files: list[dict[str, Any]] = [{"rfilename": name} for name in contents]
            if "blobs=" in urlsplit(self.path).query:  # the client asks for sizes
                files = [{"rfilename": name, "size": len(contents[name])} for name in contents]
            about = {"_id": "1", "id": match[1], "modelId": match[1], "sha": commit, "siblings": files}
            return 200, {"Content-Type": "application/json"}, json.dumps(about).encode()
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            repository = self._repository(match[1])
            files = repository.commits[self._commit(repository, match[2])]
            tree = [_entry(name, content) for name, content in files.items()]
            return 200, {"Content-Type": "application/json"}, json.dumps(tree).encode()
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(*match.groups(), path)
        raise _Refused(404)

    def _file(self, name: str, revision: str, file: str, path: str) -> tuple[int, dict[str, str], bytes]:
        """A small file; or a large one, for which the hub refers to its storage, which wants no token."""
        token, is_storage = self._token(), self.server.server_address[1] == urlsplit(self.hub.storage).port
        if is_storage and token is not None:
            self.hub.leaks.append(token)
        repository = self.hub.repositories[name] if is_storage else self._repository(name)
        commit = self._commit(repository, revision)
        content = repository.commits[commit].get(file)
        if content is None:
            raise _Refused(404, "EntryNotFound", "Entry not found")
        if not is_storage and repository.gated and token != repository.reader:
            raise _Refused(
                401 if token is None else 403, "GatedRepo", f"Access to model {name} is restricted"
            )
        if file.endswith(LARGE) and not is_storage:
            about = {"X-Linked-ETag": f'"{_sha256(content)}"', "X-Linked-Size": str(len(content))}
            return 302, about | {"X-Repo-Commit": commit, "Location": self.hub.storage + path}, b""
        if self.command == "GET":
            self.hub.downloads.append(file)
            if file.endswith(LARGE):
                self.hub.large.append(name)
        fault = repository.fault
        if fault == "truncated" and file.endswith(LARGE):
            content = content[:-7]
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{_git_id(content)}"'}, content

    def _repository(self, name: str) -> Repository:
        token, repository = self._token(), self.hub.repositories.get(name)
        if token is not None and token not in self.hub.tokens:
            raise _Refused(401, "", "Invalid credentials in Authorization header")
        if repository is None or (repository.reader not in (None, token) and not repository.gated):
            raise _Refused(401 if token is None else 404, "RepoNotFound", "Repository not found")
        if isinstance(repository.fault, int):
            raise _Refused(repository.fault, "", "no luck today")
        return repository

    def _commit(self, repository: Repository, revision: str) -> str:
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _token(self) -> str | None:
        said = self.headers["authorization"]
        return None if said is None else said.removeprefix("Bearer ")


def _entry(name: str, content: bytes) -> dict[str, Any]:
    size = len(content)
    if not name.endswith(LARGE):
        return {"type": "file", "path": name, "size": size, "oid": _git_id(content)}
    lfs = {"oid": _sha256(content), "size": size, "pointerSize": 134}
    return {"type": "file", "path": name, "size": size, "oid": _git_id(b"pointer"), "lfs": lfs}


def _git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
