"""A small Hugging Face hub on loopback: the requests that huggingface_hub makes to list, fetch and push models.

Files that end in .safetensors are large ones (LFS): the hub knows them by SHA-256, small ones by git's SHA-1.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def git_digest(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def is_large(path: str) -> bool:
    return path.endswith(".safetensors")


def etag(path: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if is_large(path) else git_digest(content)


@dataclass
class Hosted:
    """A repository: the files of each commit, and the commit of each branch or tag."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    token: str | None = None  # of a private one
    gated: bool = False
    messages: list[str] = field(default_factory=list)

    def commit(self, files: dict[str, bytes], branch: str = "main", message: str = "") -> str:
        content = json.dumps({path: etag(path, data) for path, data in files.items()}, sort_keys=True)
        sha = hashlib.sha1(f"{len(self.commits)} {content}".encode()).hexdigest()
        self.commits[sha] = files
        self.branches[branch] = sha
        self.messages.append(message)
        return sha


class HubServer(ThreadingHTTPServer):
    """Runs in a thread while it is a context."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.cache = Path()  # of the client
        self.repositories: dict[str, Hosted] = {}
        self.large: dict[str, bytes] = {}  # what was uploaded, by SHA-256
        self.requests: list[str] = []
        self.ranges: list[str] = []
        self.cut: dict[str, list[int]] = {}  # by file: after so many bytes the next answers break off
        self.altered: dict[str, bytes] = {}  # by file: what is sent in place of the content
        self.writers: set[str] = set()  # tokens that may push

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()

    def add(self, name: str, files: dict[str, bytes], **facts: Any) -> Hosted:
        self.repositories[name] = Hosted(**facts)
        self.repositories[name].commit(files)
        return self.repositories[name]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        for pattern, handle in ROUTES:
            if match := re.fullmatch(pattern, path):
                handle(self, **match.groupdict())
                return
        self.fail(404, "RepoNotFound")

    # ---- answers

    def send(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_json(self, value: Any, status: int = 200) -> None:
        self.send(json.dumps(value).encode(), status, Content_Type="application/json")

    def fail(self, status: int, code: str = "") -> None:
        self.send(b"{}", status, X_Error_Code=code, Content_Type="application/json")

    def given_token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    # ---- reading

    def find(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit and its files, or an answer that there is none."""
        hosted, given = self.server.repositories.get(name), self.given_token()
        if hosted is None or (hosted.token is not None and given != hosted.token):
            self.fail(404 if given else 401, "RepoNotFound")
            return None
        if hosted.gated:
            self.fail(403, "GatedRepo")
            return None
        commit = hosted.branches.get(revision, revision)
        if commit not in hosted.commits:
            self.fail(404, "RevisionNotFound")
            return None
        return commit, hosted.commits[commit]

    def info(self, name: str, revision: str | None = None) -> None:
        if found := self.find(name, revision or "main"):
            commit, files = found
            siblings = [
                {"rfilename": path, "size": len(content), "blobId": git_digest(content)}
                | (
                    {"lfs": {"size": len(content), "sha256": etag(path, content), "pointerSize": 130}}
                    if is_large(path)
                    else {}
                )
                for path, content in files.items()
            ]
            self.send_json({"id": name, "sha": commit, "siblings": siblings})

    def tree(self, name: str, revision: str) -> None:
        if found := self.find(name, revision):
            self.send_json(
                [
                    {"type": "file", "path": path, "size": len(content), "oid": git_digest(content)}
                    | (
                        {"lfs": {"size": len(content), "oid": etag(path, content), "pointerSize": 130}}
                        if is_large(path)
                        else {}
                    )
                    for path, content in found[1].items()
                ]
            )

    def resolve(self, name: str, revision: str, path: str) -> None:
        found = self.find(name, revision)
        if found is None:
            return
        commit, files = found
        if path not in files:
            self.fail(404, "EntryNotFound")
            return
        tag, content = etag(path, files[path]), self.server.altered.get(path, files[path])
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        status, start = 200, 0
        if self.command == "GET" and (wanted := self.headers.get("Range")):
            self.server.ranges.append(f"{path} {wanted}")
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            status = 206
        cuts = self.server.cut.get(path)
        if self.command == "GET" and cuts:
            self.send_response(status)
            for header, value in {**headers, "Content-Length": str(len(content) - start)}.items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(content[start : start + cuts.pop(0)])
            self.wfile.flush()
            self.close_connection = True
            return
        self.send(content[start:], status, **headers)

    # ---- writing

    def may_write(self) -> bool:
        if self.given_token() in self.server.writers:
            return True
        self.fail(401)
        return False

    def create(self) -> None:
        if not self.may_write():
            return
        wanted = json.loads(self.body)
        name = f"{wanted['organization']}/{wanted['name']}"
        exists = name in self.server.repositories
        if not exists:
            hosted = self.server.add(name, {".gitattributes": b""})
            if wanted.get("visibility") == "private":
                hosted.token = self.given_token()
        self.send_json({"url": f"{self.server.url}/{name}"}, 409 if exists else 200)

    def preupload(self, name: str, revision: str) -> None:
        if self.may_write() and self.find(name, revision):
            paths = [file["path"] for file in json.loads(self.body)["files"]]
            modes = [{"path": path, "uploadMode": "lfs" if is_large(path) else "regular"} for path in paths]
            self.send_json({"files": [{**mode, "shouldIgnore": False} for mode in modes]})

    def batch(self, name: str) -> None:
        if self.may_write():
            objects = [
                {**wanted, "actions": {"upload": {"href": f"{self.server.url}/upload/{wanted['oid']}"}}}
                for wanted in json.loads(self.body)["objects"]
            ]
            self.send_json({"transfer": "basic", "objects": objects})

    def upload(self, oid: str) -> None:
        self.server.large[oid] = self.body
        self.send(b"")

    def commit(self, name: str, revision: str) -> None:
        found = self.find(name, revision) if self.may_write() else None
        if found is None:
            return
        files, message = dict(found[1]), ""
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        commit = self.server.repositories[name].commit(files, revision, message)
        self.send_json({"commitUrl": f"{self.server.url}/{name}/commit/{commit}", "commitOid": commit})

    def validate(self) -> None:
        self.send_json({"errors": [], "warnings": []})


REPOSITORY, REVISION = r"(?P<name>[\w.-]+/[\w.-]+)", r"(?P<revision>[\w./-]+)"
ROUTES = [
    ("/api/repos/create", Handler.create),
    ("/api/validate-yaml", Handler.validate),
    (f"/api/models/{REPOSITORY}", Handler.info),
    (f"/api/models/{REPOSITORY}/revision/{REVISION}", Handler.info),
    (f"/api/models/{REPOSITORY}/tree/{REVISION}", Handler.tree),
    (f"/api/models/{REPOSITORY}/preupload/{REVISION}", Handler.preupload),
    (f"/api/models/{REPOSITORY}/commit/{REVISION}", Handler.commit),
    (rf"/{REPOSITORY}\.git/info/lfs/objects/batch", Handler.batch),
    (r"/upload/(?P<oid>\w+)", Handler.upload),
    (rf"/{REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
]
