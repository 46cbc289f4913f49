"""A hub on 127.0.0.1: the protocol of huggingface.co as its client speaks it, and its faults.

Only the standard library, so that a test can start it in a process that imports nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

LFS_SUFFIXES = (".bin", ".jsonl", ".msgpack", ".npy", ".ot", ".parquet", ".safetensors")
CONTENT = "/(resolve|resolve-cache|xet-bridge)/"
"""Found in the path of every question for a file, and for where its content is."""

CLIMBING_PATH = "../../climbed.txt"
CLIMBING_CONTENT = b"this file lies outside of its folder\n"

Kind = Literal[
    "status", "truncate", "reset", "stall", "corrupt", "wrong_length", "no_etag", "html", "climb"
]

_DAY = "2024-01-01T00:00:00.000Z"
_RESOLVE = re.compile(
    r"/(?P<kind>datasets/)?(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
)
_CONTENT = re.compile(
    r"/(?:api/resolve-cache|xet-bridge)/(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)"
    r"/(?P<revision>[^/]+)/(?P<path>.+)"
)
_API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)"
    r"(?:/(?P<verb>revision|tree|paths-info)/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?"
)


@dataclass(frozen=True)
class File:
    """A file's content, and what the hub says of it.

    Args:
        data: the content.
        lfs: kept in LFS, where a file goes by its sha256; the others by git's own hash.
    """

    data: bytes
    lfs: bool

    @cached_property
    def sha256(self) -> str:
        """Of the content."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def oid(self) -> str:
        """What git would call the content; the real hub gives that of the pointer to LFS."""
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def etag(self) -> str:
        """What the client names its copy after."""
        return self.sha256 if self.lfs else self.oid

    @staticmethod
    def at(path: str, data: bytes) -> File:
        """The file of that content, in LFS if its name says so."""
        return File(data, path.endswith(LFS_SUFFIXES))


class Repository:
    """Commits, each a tree of files, and the branches that name some of them."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, File]] = {}
        self.refs: dict[str, str] = {}

    def add(self, files: Mapping[str, bytes], commit: str | None = None, ref: str = "main") -> str:
        """Add a commit and move a branch to it.

        Args:
            files: the whole content, by path.
            commit: 40 hex digits; None derives them from the content. If it is there already, its
                content is replaced, which no real hub would do.
            ref: the branch.

        Returns:
            The commit.
        """
        tree = {path: File.at(path, data) for path, data in sorted(files.items())}
        if commit is None:
            listing = "\n".join(f"{file.oid} {path}" for path, file in tree.items())
            commit = hashlib.sha1(listing.encode()).hexdigest()
        if not re.fullmatch("[0-9a-f]{40}", commit):
            raise ValueError(f"a commit has 40 hex digits: {commit!r}")
        self.commits[commit] = tree
        self.refs[ref] = commit
        return commit

    def resolve(self, revision: str) -> str | None:
        """The commit that a branch or a commit names."""
        commit = self.refs.get(revision, revision)
        return commit if commit in self.commits else None

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """The content at a revision that is there, by path."""
        commit = self.resolve(revision)
        if commit is None:
            raise KeyError(revision)
        return {path: file.data for path, file in self.commits[commit].items()}

    def copy(self) -> Repository:
        """One that can change without this one."""
        copied = Repository()
        copied.commits, copied.refs = dict(self.commits), dict(self.refs)
        return copied


@dataclass
class Fault:
    """What goes wrong with the next requests that match.

    ============== ===============================================================================
    kind           what happens
    ============== ===============================================================================
    status         `status` with `headers` instead of an answer
    truncate       all is announced, the first `after` bytes are sent, then the connection ends
    reset          the same, but it ends by RST; ``after=None``: before any answer
    stall          the same, but then nothing happens for `seconds`; ``after=None``: before any
                   answer, which then comes
    corrupt        the right number of bytes; the last one is another, of an answer that has any
    wrong_length   `extra` bytes more, or fewer if negative, in the headers and in the body alike
    no_etag        no ETag
    html           a page of HTML, with status 200
    climb          a listing with one entry more, the file `CLIMBING_PATH`, which can be had
    ============== ===============================================================================

    Args:
        path: regular expression, searched for in the path of the request.
        kind: see above.
        method: regular expression, which the method has to match as a whole.
        times: how many requests are hit; None: all.
        status: of `status`.
        headers: of `status`.
        after: see above.
        seconds: of `stall`.
        extra: of `wrong_length`.
    """

    path: str
    kind: Kind
    method: str = "GET"
    times: int | None = 1
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    after: int | None = None
    seconds: float = 60.0
    extra: int = -1

    def hits(self, method: str, path: str) -> bool:
        """Whether it is this request's turn."""
        return (
            self.times != 0
            and re.fullmatch(self.method, method) is not None
            and re.search(self.path, path) is not None
        )


@dataclass
class Request:
    """A request as it was logged.

    Args:
        method: GET, HEAD or POST.
        path: without escapes.
        query: as it came.
        range: the header.
        authorized: an Authorization header came with it.
        fault: the kind of the fault that hit it.
        status: of the answer; None if there was none.
    """

    method: str
    path: str
    query: str
    range: str | None
    authorized: bool
    fault: Kind | None = None
    status: int | None = None


class Hub:
    """The server: models and data sets, plain files, faults to come, and a log of what was asked.

    A context manager: it listens within, and no connection is left afterwards.

    Args:
        page: entries of a listing that are sent at a time; the real hub has pages too.
    """

    def __init__(self, page: int = 1000) -> None:
        self.page = page
        self.models: dict[str, Repository] = {}
        self.datasets: dict[str, Repository] = {}
        self.files: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.log: list[Request] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="hub"
        )

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def bridge(self) -> str:
        """The other host, from which large files come; it is this server by another name."""
        return self.url.replace("127.0.0.1", "localhost")

    def model(self, name: str) -> Repository:
        """The model repository OWNER/NAME, which is made if there is none."""
        return self.models.setdefault(name, Repository())

    def dataset(self, name: str) -> Repository:
        """The data set repository OWNER/NAME, which is made if there is none."""
        return self.datasets.setdefault(name, Repository())

    def environment(self, home: Path) -> dict[str, str]:
        """What makes the hub's client in another process ask this hub, and keep all in `home`."""
        local = "127.0.0.1,localhost"
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_DATASETS_CACHE": str(home / "datasets"),
            "HF_HUB_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "NO_PROXY": local,
            "no_proxy": local,
        }

    def requests(self, path: str = "", method: str = ".*") -> list[Request]:
        """The logged requests in whose path the one expression is found, and that match the other.

        Args:
            path: regular expression.
            method: regular expression.
        """
        return [
            r for r in list(self.log) if re.search(path, r.path) and re.fullmatch(method, r.method)
        ]

    @contextmanager
    def kept(self) -> Iterator[Hub]:
        """No faults and an empty log; all that is changed within is undone afterwards."""
        models, datasets, files = dict(self.models), dict(self.datasets), dict(self.files)
        self.models = {name: repository.copy() for name, repository in models.items()}
        self.datasets = {name: repository.copy() for name, repository in datasets.items()}
        self.faults, self.log = [], []
        try:
            yield self
        finally:
            self.models, self.datasets, self.files = models, datasets, files
            self.faults, self.log = [], []

    def note(self, request: Request) -> Fault | None:
        """Log a request, and give the fault that is to hit it."""
        if request.path == "/":  # asks whether there is a hub, and for nothing
            return None
        with self._lock:
            fault = next((f for f in self.faults if f.hits(request.method, request.path)), None)
            if fault is not None:
                request.fault = fault.kind
                if fault.times is not None:
                    fault.times -= 1
            self.log.append(request)
        return fault


class _Server(ThreadingHTTPServer):
    """Knows its connections, so that none outlives it: clients keep theirs open for later."""

    daemon_threads = False

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
            super().shutdown_request(request)

    def hang_up(self) -> None:
        """End what is open; the threads that wait for it then end too."""
        with self._lock:
            for connection in self._open:
                # It may have ended by itself.
                if connection.fileno() != -1:
                    try:
                        connection.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        continue


class _UnansweredError(Exception):
    """The connection is to end without an answer, or in the middle of one."""


class _Handler(BaseHTTPRequestHandler):
    """One connection: finds what was asked for, lets the fault spoil it, and sends it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two packets
    server: _Server
    request_: Request
    fault: Fault | None

    def log_message(self, *_: object) -> None:
        """Nothing: the hub has its own log."""

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # by the client

    # ------------------------------------------------------------------ what was asked for

    def _serve(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.request_ = Request(
            self.command,
            unquote(url.path),
            url.query,
            self.headers.get("Range"),
            "Authorization" in self.headers,
        )
        self.fault = self.server.hub.note(self.request_)
        try:
            if self._spoilt_at_once():
                return
            if found := _RESOLVE.fullmatch(url.path):
                self._redirect(found)
            elif found := _CONTENT.fullmatch(url.path):
                self._content(found)
            elif found := _API.fullmatch(url.path):
                self._api(found, parse_qs(url.query), body)
            elif (data := self.server.hub.files.get(unquote(url.path))) is not None:
                self._file(File(data, lfs=False), {})
            else:
                self._missing("NotFound", f"no such page: {url.path}")
        except _UnansweredError:
            self.close_connection = True

    def _redirect(self, found: re.Match[str]) -> None:
        """Send on to where the content is: a large file lies on another host, in Xet storage."""
        kind = "datasets" if found["kind"] else "models"
        file, headers = self._found(kind, found)
        if file is None:
            return
        below = f"{kind}/{found['id']}/{headers['X-Repo-Commit']}/{found['path']}"
        headers["Location"] = f"/api/resolve-cache/{below}"
        if file.lfs:
            extra = self.fault.extra if self.fault and self.fault.kind == "wrong_length" else 0
            headers |= {
                "Location": f"{self.server.hub.bridge}/xet-bridge/{below}",
                "X-Linked-ETag": f'"{file.etag}"',
                "X-Linked-Size": str(len(file.data) + extra),
                "X-Xet-Hash": file.sha256,
                "Link": f'<{self.server.hub.url}/xet-read-token>; rel="xet-auth"',
            }
            if self.fault and self.fault.kind == "no_etag":
                del headers["X-Linked-ETag"]
        self._send(302 if file.lfs else 307, b"", headers)

    def _content(self, found: re.Match[str]) -> None:
        file, headers = self._found(found["kind"], found)
        if file is not None:
            self._file(file, headers)

    def _found(self, kind: str, found: re.Match[str]) -> tuple[File | None, dict[str, str]]:
        """The file and the first of its headers; if there is none, the answer has said so."""
        repository, commit = self._revision(kind, found)
        if repository is None or commit is None:
            return None, {}
        path = unquote(found["path"])
        file = repository.commits[commit].get(path)
        if file is None and path == CLIMBING_PATH:
            file = File.at(path, CLIMBING_CONTENT)
        headers = {"X-Repo-Commit": commit}
        if file is None:
            self._missing("EntryNotFound", "Entry not found", headers)
        return file, headers

    def _api(self, found: re.Match[str], query: dict[str, list[str]], body: bytes) -> None:
        repository, commit = self._revision(found["kind"], found)
        if repository is None or commit is None:
            return
        tree = repository.commits[commit]
        path = unquote(found["path"] or "").strip("/")
        match found["verb"]:
            case "tree":
                recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
                entries = _listing(tree, path, recursive)
                if path and not entries:
                    self._missing("EntryNotFound", f"{path} does not exist")
                else:
                    self._page(entries, query)
            case "paths-info":
                self._json([e for p in self._paths(body) for e in _entry(tree, p.strip("/"))])
            case _:
                self._json(_info(unquote(found["id"]), commit, tree))

    def _revision(self, kind: str, found: re.Match[str]) -> tuple[Repository | None, str | None]:
        """The repository and the commit; if one is missing, the answer has said so."""
        repository = getattr(self.server.hub, kind).get(unquote(found["id"]))
        if repository is None:
            self._missing("RepoNotFound", "Repository not found")
            return None, None
        revision = unquote(found["revision"] or "main")
        commit = repository.resolve(revision)
        if commit is None:
            self._missing("RevisionNotFound", f"Invalid rev id: {revision}")
        return repository, commit

    def _paths(self, body: bytes) -> list[str]:
        if "json" in (self.headers.get("Content-Type") or ""):
            paths: list[str] = json.loads(body)["paths"]
            return paths
        return parse_qs(body.decode()).get("paths", [])

    # ------------------------------------------------------------------ answers

    def _file(self, file: File, headers: dict[str, str]) -> None:
        """The file or the part of it that was asked for; faults of whole files happen here."""
        data = file.data
        if self.fault and self.fault.kind == "corrupt" and data:
            data = data[:-1] + bytes([data[-1] ^ 0x5A])
        if self.fault and self.fault.kind == "wrong_length":
            extra = self.fault.extra
            data = data + bytes(extra) if extra >= 0 else data[:extra]
        headers |= {"ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
        if self.fault and self.fault.kind == "no_etag":
            headers = {k: v for k, v in headers.items() if "etag" not in k.lower()}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked is None:
            return self._send(200, data, headers)
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if first >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._send(206, data[first : last + 1], headers)

    def _page(self, entries: list[dict[str, Any]], query: dict[str, list[str]]) -> None:
        if self.fault and self.fault.kind == "climb":
            entries = [*entries, _row(CLIMBING_PATH, File.at(CLIMBING_PATH, CLIMBING_CONTENT))]
        start, page = int(query.get("cursor", ["0"])[0]), self.server.hub.page
        headers = {}
        if start + page < len(entries):
            rest = "&".join(f"{k}={v[0]}" for k, v in query.items() if k != "cursor")
            path = self.path.split("?")[0]
            following = f"{self.server.hub.url}{path}?{rest}&cursor={start + page}"
            headers["Link"] = f'<{following}>; rel="next"'
        self._json(entries[start : start + page], headers)

    def _json(self, value: object, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        if self.fault and self.fault.kind == "corrupt":
            data = data[:-1] + b"?"
        self._send(200, data, {"Content-Type": "application/json", **(headers or {})})

    def _missing(self, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        said = {"X-Error-Code": code, "X-Error-Message": message, **(headers or {})}
        data = json.dumps({"error": message}).encode()
        self._send(404, data, {"Content-Type": "application/json", **said})

    def _send(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        """Send it, or what the fault leaves of it."""
        self.request_.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Type" not in headers:
            self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        fault = self.fault
        if fault is None or fault.kind not in ("truncate", "reset", "stall"):
            self.wfile.write(data)
            return
        if fault.kind == "stall" and fault.after is None:  # it has stalled already
            self.wfile.write(data)
            return
        self.wfile.write(data[: fault.after or 0])
        if fault.kind == "reset":
            # RST makes the client's system throw away what the client has not yet read.
            self.server.hub.closing.wait(0.1)
            self._reset()
        if fault.kind == "stall":
            self.server.hub.closing.wait(fault.seconds)
        raise _UnansweredError

    def _spoilt_at_once(self) -> bool:
        """Let the faults happen that need not know what was asked for; whether that was all."""
        fault = self.fault
        if fault is None:
            return False
        if fault.kind == "status":
            self._send(fault.status, b"a fault of the test's making", fault.headers)
            return True
        if fault.kind == "html":
            page = b"<!DOCTYPE html><html><body>Please sign in to this network.</body></html>"
            self._send(200, page, {"Content-Type": "text/html"})
            return True
        if fault.kind == "reset" and fault.after is None:
            self._reset()
            raise _UnansweredError
        if fault.kind == "stall" and fault.after is None:
            self.server.hub.closing.wait(fault.seconds)
        return False

    def _reset(self) -> None:
        """See to it that closing the connection sends RST; the server's shutdown would send FIN."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _row(path: str, file: File) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "oid": file.oid, "size": len(file.data), "path": path}
    if file.lfs:
        row["lfs"] = {"oid": file.sha256, "size": len(file.data), "pointerSize": 134}
    return row


def _directory(path: str) -> dict[str, Any]:
    return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}


def _entry(tree: Mapping[str, File], path: str) -> list[dict[str, Any]]:
    """What `paths-info` says of a path: nothing if there is none."""
    if path in tree:
        return [_row(path, tree[path])]
    return [_directory(path)] if any(p.startswith(path + "/") for p in tree) else []


def _listing(tree: Mapping[str, File], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """The files and folders in a folder, and with `recursive` in all below it."""
    start = folder + "/" if folder else ""
    within = {path: file for path, file in tree.items() if path.startswith(start)}
    folders: dict[str, None] = {}
    files = []
    for path, file in within.items():
        *above, _ = path[len(start) :].split("/")
        shown = len(above) if recursive else min(len(above), 1)
        folders |= {start + "/".join(above[: i + 1]): None for i in range(shown)}
        if recursive or not above:
            files.append(_row(path, file))
    return [*map(_directory, folders), *files]


def _info(name: str, commit: str, tree: Mapping[str, File]) -> dict[str, Any]:
    return {
        "_id": "0" * 24,
        "id": name,
        "modelId": name,
        "author": name.split("/")[0],
        "sha": commit,
        "createdAt": _DAY,
        "lastModified": _DAY,
        "private": False,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "siblings": [{"rfilename": path} for path in tree],
    }
