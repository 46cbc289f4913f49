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
from copy import deepcopy
from dataclasses import dataclass, field
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

_RESOLVE = re.compile(
    r"/(?P<kind>datasets/)?(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
)
_CONTENT = re.compile(
    r"/(?:api/resolve-cache|xet-bridge)/(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)"
    r"/(?P<revision>[^/]+)/(?P<path>.+)"
)
_API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)"
    r"(?:/(?P<verb>revision|tree)/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?"
)


class File:
    """A file's content, and what the hub says of it.

    Its path says whether it is kept in LFS, where a file goes by its sha256, not git's own hash.
    """

    def __init__(self, path: str, data: bytes) -> None:
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        self.lfs = path.endswith(LFS_SUFFIXES)
        self.etag = self.sha256 if self.lfs else self.oid

    def __deepcopy__(self, _: object) -> File:
        return self


@dataclass
class Repository:
    """Commits, each a tree of files, and the branches that name some of them."""

    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

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
        tree = {path: File(path, data) for path, data in sorted(files.items())}
        listing = "\n".join(f"{file.oid} {path}" for path, file in tree.items())
        commit = commit or hashlib.sha1(listing.encode()).hexdigest()
        self.commits[commit] = tree
        self.refs[ref] = commit
        return commit

    def resolve(self, revision: str) -> str | None:
        """The commit that a branch or a commit names."""
        commit = self.refs.get(revision, revision)
        return commit if commit in self.commits else None

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """The content at a revision that is there, by path."""
        return {
            path: file.data
            for path, file in self.commits[self.refs.get(revision, revision)].items()
        }


@dataclass
class Fault:
    """What goes wrong with the next requests that match.

    ============== ===============================================================================
    kind           what happens
    ============== ===============================================================================
    status         `status` with `headers` instead of an answer
    truncate       all is announced, the first `after` bytes are sent, then the connection ends
    reset          the same, but it ends by RST; ``after=None``: before any answer
    stall          the same, but then nothing happens for `seconds`
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
        status: of `status`, and so are the others.
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
        matches = re.fullmatch(self.method, method) and re.search(self.path, path)
        return self.times != 0 and bool(matches)


@dataclass
class Request:
    """A request as it was logged."""

    method: str
    path: str
    authorized: bool


class Hub:
    """The server: models and data sets, plain files, faults to come, and a log of what was asked.

    A context manager: it listens within.
    """

    def __init__(self) -> None:
        self.page = 1000  # entries of a listing that are sent at a time; the real hub has pages too
        self.models: dict[str, Repository] = {}
        self.datasets: dict[str, Repository] = {}
        self.files: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.log: list[Request] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self})
        )
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
        self._server.server_close()

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def model(self, name: str) -> Repository:
        """The model repository OWNER/NAME, which is made if there is none."""
        return self.models.setdefault(name, Repository())

    def dataset(self, name: str) -> Repository:
        """The data set repository OWNER/NAME, which is made if there is none."""
        return self.datasets.setdefault(name, Repository())

    def environment(self, home: Path) -> dict[str, str]:
        """What makes the hub's client in another process ask this hub, and keep all in `home`."""
        online = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
        quiet = ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_UPDATE_CHECK")
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_DATASETS_CACHE": str(home / "datasets"),
            **dict.fromkeys(online, "0"),
            **dict.fromkeys(quiet, "1"),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
        }

    def requests(self, path: str = "", method: str = ".*") -> list[Request]:
        """The logged requests with the one expression in their path whose method is the other."""
        return [
            r for r in list(self.log) if re.search(path, r.path) and re.fullmatch(method, r.method)
        ]

    @contextmanager
    def kept(self) -> Iterator[Hub]:
        """No faults and an empty log; all that is changed within is undone afterwards."""
        before = self.models, self.datasets, self.files
        self.models, self.datasets, self.files = deepcopy(before)
        self.faults, self.log = [], []
        try:
            yield self
        finally:
            self.models, self.datasets, self.files = before
            self.faults, self.log = [], []

    def note(self, request: Request) -> Fault | None:
        """Log a request, and give the fault that is to hit it."""
        if request.path == "/":  # asks whether there is a hub, and for nothing
            return None
        with self._lock:
            fault = next((f for f in self.faults if f.hits(request.method, request.path)), None)
            if fault is not None and fault.times is not None:
                fault.times -= 1
            self.log.append(request)
        return fault


class _UnansweredError(Exception):
    """The connection is to end without an answer, or in the middle of one."""


class _MissingError(Exception):
    """There is no such thing: the hub's code for it, and a message."""


class _Handler(BaseHTTPRequestHandler):
    """One request: finds what was asked for, lets the fault spoil it, and sends it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two packets
    hub: Hub
    fault: Fault | None

    def log_message(self, *_: object) -> None:
        """Nothing: the hub has its own log."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        authorized = "Authorization" in self.headers
        self.fault = self.hub.note(Request(self.command, unquote(url.path), authorized))
        self.close_connection = True  # so that none is left when the hub closes
        try:
            if not self._spoilt_at_once():
                self._answer(url.path)
        except _MissingError as missing:
            code, message = missing.args
            told = {"X-Error-Code": code, "X-Error-Message": message}
            self._json({"error": message}, told, status=404)
        except (_UnansweredError, BrokenPipeError, ConnectionResetError):
            pass

    do_HEAD = do_GET  # noqa: N815 - as http.server calls them

    # ------------------------------------------------------------------ what was asked for

    def _answer(self, path: str) -> None:
        if found := _RESOLVE.fullmatch(path):
            self._redirect(found)
        elif found := _CONTENT.fullmatch(path):
            _, commit, file = self._file_of(found["kind"], found)
            self._file(file, {"X-Repo-Commit": commit})
        elif found := _API.fullmatch(path):
            self._api(found)
        elif (data := self.hub.files.get(unquote(path))) is not None:
            self._file(File("", data), {})
        else:
            raise _MissingError("NotFound", f"no such page: {path}")

    def _tree(self, kind: str, found: re.Match[str]) -> tuple[str, dict[str, File]]:
        """The commit that was asked for, and its files."""
        repository = getattr(self.hub, kind).get(unquote(found["id"]))
        if repository is None:
            raise _MissingError("RepoNotFound", "Repository not found")
        revision = unquote(found["revision"] or "main")
        commit = repository.resolve(revision)
        if commit is None:
            raise _MissingError("RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, repository.commits[commit]

    def _file_of(self, kind: str, found: re.Match[str]) -> tuple[str, str, File]:
        """Where the file is, its commit, and the file."""
        commit, tree = self._tree(kind, found)
        path = unquote(found["path"])
        if path == CLIMBING_PATH:
            tree = {path: File(path, CLIMBING_CONTENT)}
        if path not in tree:
            raise _MissingError("EntryNotFound", "Entry not found")
        return f"{kind}/{found['id']}/{commit}/{found['path']}", commit, tree[path]

    def _redirect(self, found: re.Match[str]) -> None:
        """Send on to where the content is: a large file lies on another host, in Xet storage."""
        below, commit, file = self._file_of("datasets" if found["kind"] else "models", found)
        headers = {"X-Repo-Commit": commit, "Location": f"/api/resolve-cache/{below}"}
        if file.lfs:
            extra = self.fault.extra if self.fault and self.fault.kind == "wrong_length" else 0
            headers |= {
                # this server by another name
                "Location": f"{self.hub.url}/xet-bridge/{below}".replace("127.0.0.1", "localhost"),
                "X-Linked-ETag": f'"{file.etag}"',
                "X-Linked-Size": str(len(file.data) + extra),
                "X-Xet-Hash": file.sha256,
                "Link": f'<{self.hub.url}/xet-read-token>; rel="xet-auth"',
            }
            if self.fault and self.fault.kind == "no_etag":
                del headers["X-Linked-ETag"]
        self._send(302 if file.lfs else 307, b"", headers)

    def _api(self, found: re.Match[str]) -> None:
        commit, tree = self._tree(found["kind"], found)
        path = unquote(found["path"] or "").strip("/")
        if found["verb"] != "tree":
            siblings = [{"rfilename": path} for path in tree]
            info = {"id": unquote(found["id"]), "sha": commit, "private": False, "tags": []}
            self._json(info | {"siblings": siblings})
            return
        recursive = self.query.get("recursive", ["false"])[0].lower() in ("true", "1")
        entries = _listing(tree, path, recursive)
        if path and not entries:
            raise _MissingError("EntryNotFound", f"{path} does not exist")
        self._page(entries)

    # ------------------------------------------------------------------ answers

    def _file(self, file: File, headers: dict[str, str]) -> None:
        """The whole file, for the client asks for no parts; faults of files happen here."""
        data, kind = file.data, self.fault.kind if self.fault else None
        if kind == "corrupt" and data:
            data = data[:-1] + bytes([data[-1] ^ 0x5A])
        if self.fault and kind == "wrong_length":
            extra = self.fault.extra
            data = data + bytes(extra) if extra >= 0 else data[:extra]
        headers |= {} if kind == "no_etag" else {"ETag": f'"{file.etag}"'}
        self._send(200, data, headers)

    def _page(self, entries: list[dict[str, Any]]) -> None:
        if self.fault and self.fault.kind == "climb":
            entries = [*entries, _row(CLIMBING_PATH, File(CLIMBING_PATH, CLIMBING_CONTENT))]
        start, page = int(self.query.get("cursor", ["0"])[0]), self.hub.page
        headers = {}
        if start + page < len(entries):
            rest = "&".join(f"{k}={v[0]}" for k, v in self.query.items() if k != "cursor")
            following = f"{self.hub.url}{self.path.split('?')[0]}?{rest}&cursor={start + page}"
            headers["Link"] = f'<{following}>; rel="next"'
        self._json(entries[start : start + page], headers)

    def _json(
        self, value: object, headers: Mapping[str, str] | None = None, status: int = 200
    ) -> None:
        data = json.dumps(value).encode()
        if self.fault and self.fault.kind == "corrupt":
            data = data[:-1] + b"?"
        self._send(status, data, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        """Send it, or what the fault leaves of it."""
        self.send_response(status)
        sizes = {"Content-Length": str(len(data)), "Connection": "close"}
        for name, value in {"Content-Type": "application/octet-stream", **headers, **sizes}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        fault = self.fault
        if fault is None or fault.kind not in ("truncate", "reset", "stall"):
            self.wfile.write(data)
            return
        self.wfile.write(data[: fault.after or 0])
        if fault.kind == "reset":
            # RST makes the client's system throw away what the client has not yet read
            self.hub.closing.wait(0.1)
            self._reset()
        if fault.kind == "stall":
            self.hub.closing.wait(fault.seconds)
        raise _UnansweredError

    def _spoilt_at_once(self) -> bool:
        """Let the faults happen that need not know what was asked for; whether that was all."""
        fault = self.fault
        if fault is not None and fault.kind == "status":
            self._send(fault.status, b"a fault of the test's making", fault.headers)
        elif fault is not None and fault.kind == "html":
            page = b"<!DOCTYPE html><html><body>Please sign in to this network.</body></html>"
            self._send(200, page, {"Content-Type": "text/html"})
        elif fault is not None and fault.kind == "reset" and fault.after is None:
            self._reset()
            raise _UnansweredError
        else:
            return False
        return True

    def _reset(self) -> None:
        """See to it that closing the connection sends RST; the server's shutdown would send FIN."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _row(path: str, file: File) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "oid": file.oid, "size": len(file.data), "path": path}
    if file.lfs:
        row["lfs"] = {"oid": file.sha256, "size": len(file.data), "pointerSize": 134}
    return row


def _listing(tree: Mapping[str, File], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """The files and folders in a folder, and with `recursive` in all below it."""
    start = folder + "/" if folder else ""
    entries: dict[str, dict[str, Any]] = {}
    for path, file in tree.items():
        for above in reversed(Path(path).parents[:-1]):
            directory = {"type": "directory", "oid": "0" * 40, "size": 0, "path": str(above)}
            entries.setdefault(str(above), directory)
        entries[path] = _row(path, file)
    below = {path: entry for path, entry in entries.items() if path.startswith(start)}
    return [e for path, e in below.items() if recursive or "/" not in path[len(start) :]]
