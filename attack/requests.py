"""Requests that no well-meaning client sends."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attack import material, mutations

READ, TEACH = "a-token-that-may-read", "a-token-that-may-teach"
PATHS = ("/predict", "/explain", "/learn?label=x")
LOOKS = ("/", "/classes", "/model", "/metrics", "/healthz", "/readyz", "/openapi.json", "/examples", "/docs", "/app.js")
VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW", "get", "P" * 3000)
ODD = (
    "", " ", ".", "..", "\0", "a\0b", "\x1b[31mred", "\u202eevil", "\u00ad", "\u200b", "\ud800", "a\nb", "ﷺ" * 40,
    "e\u0301",
    "𝕏", "\ufeff", "%00", "{{7*7}}", "${jndi:ldap://127.0.0.1/x}", "' OR 1=1 --", "a" * 201, "a" * 5000,
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd", "C:\\windows", "null", "true", "1e999", "-0", "nan", "\U0010ffff",
)  # fmt: skip
SCRIPTS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "javascript:alert(1)", "<svg/onload=alert(1)>",
    "</title><script>alert(1)</script>", "`${alert(1)}`", "&lt;b&gt;",
)  # fmt: skip
TYPES = (
    "application/json", "application/octet-stream", "text/plain", "image/png", "image/svg+xml", "multipart/form-data",
    "multipart/form-data; boundary=x", "multipart/form-data; boundary=" + "x" * 5000,
    "application/x-www-form-urlencoded",
    "application/json; charset=utf-7", "application/pickle", "", "x", "text/xml", "APPLICATION/JSON", "*/*",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    None, True, "1", "", [], {}, 1e308, -1e308, 1e39, 10**400, -(10**30), 5e-324, "NaN", [1], {"a": 1}, 0.1, 2**63,
)  # fmt: skip
PLACES = (
    "/classes/{}", "/classes/{}/undo", "/jobs/{}", "/{}", "/classes/x?{}", "/../{}", "/./{}", "/exemplars/{}",
    "/exemplars?label={}", "/exemplars?label=x&start={}",
)  # fmt: skip
"""Where a name is looked for."""
MAX_BYTES = 16 * 2**20
JSON = "application/json"


@dataclass(frozen=True)
class Request:
    """Bytes, and what may come back."""

    kind: str
    server: str
    content: bytes
    answered: bool = True  # HTTP demands an answer
    refused: bool = False  # which must be a 4xx
    finished: bool = True  # otherwise the client hangs up


def make(rng: random.Random) -> Request:
    """A request of a random kind."""
    kind = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    return replace(KINDS[kind][1](rng), kind=kind)


def _http(
    server: str,
    verb: str,
    path: str,
    body: bytes = b"",
    kind: str | None = None,
    *,
    token: str | None = TEACH,
    **headers: str,
) -> bytes:
    lines = [f"{verb} {path} HTTP/1.1", "host: localhost"]
    if token is not None and server == "vectors":
        lines.append(f"authorization: Bearer {token}")
    if kind is not None:
        lines.append(f"content-type: {kind}")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if (body or verb == "POST") and "content-length" not in named and "transfer-encoding" not in named:
        lines.append(f"content-length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in named.items()]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body


def _server(rng: random.Random) -> str:
    return rng.choice(("vectors", "vectors", "images"))


def _json(values: Any) -> bytes:
    return json.dumps(values).encode("utf-8", "surrogatepass")


def _vectors(rows: int = 1) -> list[list[float]]:
    vectors: list[list[float]] = material.TEST[:rows].tolist()
    return vectors


def wrong_json(rng: random.Random) -> Request:
    """Wrong types, huge numbers, more or fewer fields than there are."""
    width, path = rng.choice((0, 1, 7, 8, 9, 256, 1000)), rng.choice(PATHS)
    values: Any = {"vectors": [[rng.choice(NUMBERS) for _ in range(width)] for _ in range(rng.choice((0, 1, 2, 40)))]}
    if rng.random() < 0.3:
        values = mutations.lie_in_values({"vectors": _vectors(2), "labels": ["a", "b"]}, rng)
    if rng.random() < 0.2 and isinstance(values, dict):
        values[rng.choice(("more", "__proto__", "texts", "labels", ""))] = rng.choice((*NUMBERS, ["x"], _vectors()))
    server = _server(rng)
    return Request("", server, _http(server, "POST", path, _json(values), "application/json"))


def broken_json(rng: random.Random) -> Request:
    """JSON with damage, deep nesting, other encodings."""
    whole = _json({"vectors": _vectors(3), "labels": ["x"] * 3})
    deep = rng.choice((100, 10_000, 200_000))
    body = rng.choice((
        mutations.damaged("", whole, rng), b"[" * deep, b'{"vectors":' * deep, b"[" * deep + b"]" * deep, whole[:-5],
        whole.decode().encode("utf-16"), b"\xff\xfe" + whole, b"\xef\xbb\xbf" + whole, b'"' + b"\\u0000" * 1000 + b'"',
        b'{"vectors": [[1e' + b"9" * 500 + b"]]}", whole + whole, rng.randbytes(300), b"",
    ))  # fmt: skip
    server = _server(rng)
    return Request("", server, _http(server, "POST", rng.choice(PATHS), body, "application/json"))


def raw_vectors(rng: random.Random) -> Request:
    """Bytes that are no vectors, or vectors that are no numbers."""
    count = rng.choice((0, 1, 31, 32, 33, 64, 32 * 1025, 4096))
    filled = np.full(8, rng.choice((np.nan, np.inf, -np.inf, 3.4e38, 1e-45)), "<f4").tobytes()
    body = rng.choice((rng.randbytes(count), bytes(count), filled))
    server = _server(rng)
    return Request("", server, _http(server, "POST", rng.choice(PATHS), body, "application/octet-stream"))


def wrong_type(rng: random.Random) -> Request:
    """A body of one kind that is said to be of another."""
    body = rng.choice(
        (_json({"vectors": _vectors()}), material.picture("PNG"), b"a=b", rng.randbytes(100), b"--x\r\n\r\n", b"")
    )
    server = _server(rng)
    encoding = {"content_encoding": rng.choice(("gzip", "br", "x"))} if rng.random() < 0.1 else {}
    return Request("", server, _http(server, "POST", rng.choice(PATHS), body, rng.choice(TYPES), **encoding))


def damaged_picture(rng: random.Random) -> Request:
    """Pictures that are damaged, or lie about their size; in forms with odd names."""
    kind = rng.choice(("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM"))
    body = mutations.damaged(".png" if kind == "PNG" else "", material.picture(kind), rng)
    path = rng.choice(PATHS[:2])
    if rng.random() < 0.5:
        return Request("", "images", _http("images", "POST", path, body, "image/png"))
    name = rng.choice(("picture", "../x", 'a"b', "", "x" * 3000))
    head = f'--q\r\ncontent-disposition: form-data; name="{name}"; filename="{rng.choice(ODD)[:300]}"\r\n\r\n'
    form = head.encode("utf-8", "surrogatepass") + body + rng.choice((b"\r\n--q--\r\n", b"", b"\r\n--q\r\n", b"--q--"))
    form = mutations.damaged("", form, rng) if rng.random() < 0.3 else form * rng.choice((1, 1, 70))
    return Request("", "images", _http("images", "POST", path, form, "multipart/form-data; boundary=q"))


def odd_label(rng: random.Random) -> Request:
    """Labels that are no names: refused, or kept as they are."""
    label = rng.choice((*ODD, 1, True, None, 1.5, 2**60, ["a"], {"a": 1}))
    body = _json({"vectors": _vectors(), "labels": [label]})
    if rng.random() < 0.1:
        return Request("", "vectors", _http("vectors", "POST", "/learn", body, "application/json"))
    body = _json({"vectors": _vectors(), "labels": [label, "b"]})  # one label too many: nothing is learned
    return Request("", "vectors", _http("vectors", "POST", "/learn", body, "application/json"), refused=True)


def script_label(rng: random.Random) -> Request:
    """A label that would be a script on a page."""
    body = _json({"vectors": _vectors(), "labels": [rng.choice(SCRIPTS)]})
    key = {"idempotency_key": f"script {rng.randrange(50)}"}
    return Request("", "vectors", _http("vectors", "POST", "/learn", body, "application/json", **key))


def odd_path(rng: random.Random) -> Request:
    """Paths that climb, odd names of classes and jobs, verbs that do not belong there."""
    name = rng.choice(
        (*ODD, *SCRIPTS, "%2e%2e/%2e%2e/etc/passwd", "%ff%fe", "%", "%zz", "a/b/c", "class%2000x", "//", "a" * 7000)
    )
    quoted = "".join(letter if 32 < ord(letter) < 127 else f"%{ord(letter) & 255:02X}" for letter in name)
    path = rng.choice(PLACES).format(quoted)
    server, verb = _server(rng), rng.choice(VERBS[:8])
    answered = verb not in ("CONNECT",)
    return Request("", server, _http(server, verb, path), answered)


def odd_verb(rng: random.Random) -> Request:
    """Verbs that nobody has, where others belong."""
    server = _server(rng)
    body = _json({"vectors": _vectors()}) if rng.random() < 0.3 else b""
    return Request(
        "", server, _http(server, rng.choice(VERBS), rng.choice((*PATHS[:2], *LOOKS, "*")), body), answered=False
    )


def bad_token(rng: random.Random) -> Request:
    """Wrong tokens, and tokens for less: refused everywhere."""
    paths = (
        *PATHS,
        "/classes",
        "/model",
        "/metrics",
        "/examples",
        "/exemplars?label=x",
        "/model/download",
        "/jobs/x",
        "/classes/class%200",
        "/classes/class%200/undo",
    )
    path = rng.choice(paths)
    verb = "POST" if path in PATHS or path.endswith("undo") else "DELETE" if path.startswith("/classes/") else "GET"
    wrong: tuple[str | None, ...] = (
        None,
        "",
        "x",
        TEACH[:-1],
        TEACH + "x",
        TEACH.upper(),
        "x" * 10_000,
        "\u202e",
        "é",
        f"{TEACH},{READ}",
        f"{READ[:-1]}\t",
    )
    if verb != "GET" and path not in PATHS[:2] and rng.random() < 0.2:
        wrong = (READ,)
    body = _json({"vectors": _vectors(), "labels": ["x"]}) if verb == "POST" else b""
    sent = _http("vectors", verb, path, body, "application/json", token=rng.choice(wrong))
    if rng.random() < 0.2:
        other = rng.choice(("Basic", "bearer:", "Token", "", "Digest"))
        sent = _http("vectors", verb, path, body, "application/json", token=None, authorization=f"{other} {TEACH}")
    return Request("", "vectors", sent, refused=True)


def other_site(rng: random.Random) -> Request:
    """From a page of another site, or for a name that is not this machine's: refused."""
    hosts = (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[::1",
        "0.0.0.0",
        "",
        "evil.example:80@localhost",
    )
    if rng.random() < 0.5:
        sent = _http("images", "GET", rng.choice(LOOKS)).replace(
            b"host: localhost", f"host: {rng.choice(hosts)}".encode()
        )
    else:
        origin = rng.choice(("http://evil.example", "null", "http://[", "file://", "http://localhost.evil.example"))
        sent = _http("images", "GET", rng.choice(LOOKS), origin=origin)
    return Request("", "images", sent, refused=True)


def malformed(rng: random.Random) -> Request:
    """What is not quite HTTP."""
    whole = _http("vectors", "POST", "/predict", _json({"vectors": _vectors()}), "application/json")
    body = rng.choice((
        mutations.damaged("", whole, rng), mutations.damaged("", whole, rng), rng.randbytes(200), b"\r\n" * 50,
        b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n\r\n", b"GET  / HTTP/1.1\r\nhost : x\r\n\r\n",
        b"\x16\x03\x01" + rng.randbytes(100),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        whole.replace(b"content-length: ", b"content-length: -"),
        whole.replace(b"content-length: ", b"content-length: 9e"),
        whole.replace(b"content-type", b"transfer-encoding: chunked\r\ncontent-type"),
        whole.replace(b"content-length", b"content-length: 5\r\ncontent-length"), whole.replace(b"\r\n", b"\n"),
        _http("vectors", "POST", "/predict", b"zz\r\nabc\r\n0\r\n\r\n", JSON, transfer_encoding="chunked"),
        _http("vectors", "POST", "/predict", b"ffffffffffffffff\r\nabc", JSON, transfer_encoding="chunked"),
        _http("vectors", "GET", "/", upgrade="websocket", connection="upgrade", sec_websocket_key="x"),
    ))  # fmt: skip
    return Request("", "vectors", body, answered=False)


def breaks_off(rng: random.Random) -> Request:
    """The client hangs up in the middle."""
    server = _server(rng)
    whole = _http(server, "POST", rng.choice(PATHS), _json({"vectors": _vectors(5)}), "application/json")
    return Request("", server, whole[: rng.randrange(len(whole))], answered=False, finished=False)


def too_large(rng: random.Random) -> Request:
    """A body beyond the limit, announced or not, as a form or not: 413 and not a reset."""
    server, path = _server(rng), rng.choice(PATHS)
    kind = rng.choice(("application/json", "application/octet-stream", "multipart/form-data; boundary=q", "image/png"))
    if rng.random() < 0.3:
        sent = _http(server, "POST", path, b"[", kind, content_length=str(rng.choice((MAX_BYTES + 1, 2**40, 10**30))))
        return Request("", server, sent, refused=True)
    start = b'--q\r\ncontent-disposition: form-data; name="a"; filename="b"\r\n\r\n' if "form" in kind else b"["
    body = start + bytes(MAX_BYTES + rng.choice((1, 2**20)))
    if rng.random() < 0.5:
        return Request("", server, _http(server, "POST", path, body, kind), refused=True)
    pieces = b"".join(b"100000\r\n" + body[at : at + 2**20].ljust(2**20) + b"\r\n" for at in range(0, len(body), 2**20))
    return Request("", server, _http(server, "POST", path, pieces, kind, transfer_encoding="chunked"), refused=True)


def large(rng: random.Random) -> Request:
    """Within the limit, but more numbers than anybody needs."""
    body = rng.choice((
        b'{"vectors": [' + b"[1,2],[" * 200_000 + b"]]}", b'{"vectors": [[' + b"1," * 500_000 + b"1]]}",
        b'{"labels": [' + b'"a",' * 200_000 + b'"a"]}',
        b'{"vectors": [[0,0,0,0,0,0,0,0]], "x": "' + b"y" * 2_000_000 + b'"}',
        b'{"vectors": [' + b"[1,2]," * 2_700_000 + b"[1]]}",
    ))  # fmt: skip
    return Request("", "vectors", _http("vectors", "POST", rng.choice(PATHS), body, "application/json"), refused=True)


KINDS: dict[str, tuple[float, Callable[[random.Random], Request]]] = {
    "wrong JSON": (16, wrong_json),
    "broken JSON": (12, broken_json),
    "raw vectors": (6, raw_vectors),
    "wrong content type": (8, wrong_type),
    "damaged picture": (12, damaged_picture),
    "odd label": (8, odd_label),
    "script as a label": (1, script_label),
    "odd path": (12, odd_path),
    "odd verb": (4, odd_verb),
    "bad token": (8, bad_token),
    "other site": (4, other_site),
    "malformed HTTP": (10, malformed),
    "breaks off": (4, breaks_off),
    "too large": (0.5, too_large),
    "large": (0.3, large),
}
"""Kind -> how often, and what makes one."""
