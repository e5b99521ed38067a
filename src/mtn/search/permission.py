"""Which Milvus is connected to, and which gets the token: what the user names, not what a file names."""

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from mtn.errors import NotPermittedError
from mtn.storage.recorded import Recorded


def normalise_uri(uri: str) -> str:
    """The absolute path of a local file, or a URL without a slash at its end; a `Recorded` URI stays one."""
    text = uri.rstrip("/") if "://" in uri else str(Path(uri).expanduser().absolute())
    return Recorded(text) if isinstance(uri, Recorded) else text


def permitted_uri(uri: str, folder: Path, named: Iterable[str] = ()) -> str:
    """A URI that a model's folder records: a plain string if the user named it too, or if it is a file in that folder.

    Otherwise it stays `Recorded`, and only the environment (`MTN_MILVUS_ALLOW`) permits to connect to it.
    """
    uri = normalise_uri(uri)
    local = "://" not in uri and Path(uri).resolve().is_relative_to(folder.resolve())
    return str.__str__(uri) if local or uri in set(map(normalise_uri, named)) else Recorded(uri)


def check_permission(uri: str) -> None:
    """An error unless the user named the URI, or MTN_MILVUS_ALLOW does: URIs, separated by commas."""
    allowed = (entry.strip() for entry in os.environ.get("MTN_MILVUS_ALLOW", "").split(","))
    if isinstance(uri, Recorded) and uri not in {normalise_uri(entry) for entry in allowed if entry}:
        raise NotPermittedError(
            f"the model's exemplars are in Milvus at {str(uri)!r}, as its folder says: if that is right, name it by "
            f"--milvus (in Python milvus=) or in MTN_MILVUS_ALLOW"
        )


def token_for(uri: str) -> str:
    """MTN_MILVUS_TOKEN if it is for the server at this URI, else nothing.

    It is for the host (or host:port) in MTN_MILVUS_TOKEN_HOST; without that, for any server that the user named.
    """
    token, host = os.environ.get("MTN_MILVUS_TOKEN", ""), os.environ.get("MTN_MILVUS_TOKEN_HOST", "").strip().lower()
    if not host:
        return "" if isinstance(uri, Recorded) else token
    try:
        address = urlsplit(uri)
        return token if host in (address.hostname, f"{address.hostname}:{address.port}") else ""
    except ValueError:  # no port
        return ""
