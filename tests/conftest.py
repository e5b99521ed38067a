"""Fixtures that several test files use, and one thread, so that tests measure nothing but what they say."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded

import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import settings
from PIL import Image

import grids
import mtn
from classifiers import classifier
from cluster_data import LABELS, TRAIN, cluster_arrays
from commands import DISK
from encoder_checks import EXTRA
from hub_server import HubServer
from learners import TaskLearner
from milvus_process import MilvusProcess
from mtn import MTNClassifier, images
from mtn.cli import main
from mtn.config import Config
from mtn.data import load_vectors
from mtn.recipes import parse, with_changes
from mtn.stream import split

torch.set_num_threads(1)
# The same examples in every run, so that a failure is repeated; `pytest --hypothesis-profile=default` draws others.
settings.register_profile("repeatable", derandomize=True, database=None)
settings.load_profile("repeatable")
FLOWERS = Path(__file__).parents[2] / "shared" / "data" / "flowers102_images.zip"
# Processes that tests start, in whatever folder, import the package that is tested here.
SOURCES = str(Path(mtn.__file__).resolve().parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")]))

LONGEST = ("test_package.py", "test_attack.py", "test_serve_failures.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that in the end no process waits for one of them."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .npz of 12 classes."""
    path = tmp_path_factory.mktemp("data") / "clusters.npz"
    np.savez(path, **cluster_arrays())
    return path


@pytest.fixture(scope="session")
def configure(clusters: Path) -> Callable[..., Config]:
    """A small configuration on the clusters, 6 + 3 x 2 classes, with sections changed as given."""

    def make(**sections: Any) -> Config:
        values: dict[str, Any] = {
            "stream": {"data": str(clusters), "first": 6, "step": 2},
            "memory": {"total": 60},
            "method": {"k": 5, "size": "small", "units": 64},
            "train": {"epochs": 3, "batch": 32, "replay": 8},
        }
        for name, change in sections.items():
            values[name] = values[name] | change if isinstance(change, dict) else change
        return parse(values, "test")

    return make


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """`call("run", "demo")`: exit code, output and errors of a command, in the folder tmp_path."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mtn", *arguments])
        with pytest.raises(SystemExit) as end:
            main.main()
            raise SystemExit(0)
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a classifier that has learned the clusters, with ids and thumbnails; tests do not change it."""
    folder = tmp_path_factory.mktemp("model")
    thumbnails = np.arange(len(TRAIN) * 12, dtype=np.uint8).reshape(-1, 3, 4)
    ids = [f"file {row}" for row in range(len(TRAIN))]
    classifier().fit(TRAIN, LABELS, ids=ids, thumbnails=thumbnails).save(folder)
    return folder


@pytest.fixture
def fitted(model_folder: Path) -> MTNClassifier:
    """A classifier that has learned the clusters."""
    return MTNClassifier.load(model_folder)


@pytest.fixture(scope="session")
def photograph() -> Image.Image:
    """A photograph of the flowers, if they are on this machine."""
    if not FLOWERS.is_file():
        pytest.skip(f"{FLOWERS} is not there")
    with zipfile.ZipFile(FLOWERS) as archive:
        name = next(name for name in sorted(archive.namelist()) if name.endswith(".jpg"))
        return images.decode(archive.read(name))


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The library, if it is installed."""
    return pytest.importorskip("transformers", reason=EXTRA)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if not hasattr(os, "geteuid") or os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub on loopback, with an empty cache and no token on this side; what it would wait for is not waited for."""
    constants = pytest.importorskip("huggingface_hub.constants", reason=EXTRA)
    for name in ("MTN_DOWNLOAD", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with HubServer() as server:
        server.cache = tmp_path / "cache"
        values = {"ENDPOINT": server.url, "HF_HUB_CACHE": str(server.cache), "HF_HUB_DISABLE_XET": True}
        values |= {"HF_TOKEN_PATH": str(tmp_path / "token"), "HF_HUB_OFFLINE": False}
        values["HUGGINGFACE_CO_URL_TEMPLATE"] = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in values.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        yield server


@pytest.fixture
def train_learner(configure: Callable[..., Config]) -> Callable[..., TaskLearner]:
    """A learner that has done `tasks` tasks: `train_learner("ncm", 4, stream={...})`."""

    def make(name: str, tasks: int, **sections) -> TaskLearner:
        config = with_changes(configure(**{"train": {"epochs": 1}, **sections}), method={"name": name})
        every = split(load_vectors(config.stream.data), config.stream)
        it = TaskLearner(config, every)
        for task in every[:tasks]:
            it.learn_task(task)
        return it

    return make


@pytest.fixture(scope="session")
def single_sample_stream(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A stream of 10 + 1 + 1 classes; one of the base and the last have a single training sample."""
    arrays = cluster_arrays(train=8, test=2)
    y = arrays["y_train"]
    rows = np.array([row for row, label in enumerate(y) if label not in (0, 11) or y[row - 1] != label])
    arrays |= {"x_train": arrays["x_train"][rows], "y_train": y[rows]}
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez(path, **arrays)
    names = load_vectors(str(path)).names
    return {"data": str(path), "first": None, "step": None, "tasks": [names[:10], names[10:11], names[11:]]}


@pytest.fixture(scope="module")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusProcess]:
    """A Milvus server; one at a time on a machine, as they share a pid file."""
    pytest.importorskip("milvus", reason="milvus, the server, is not there: pip install milvus")
    server = MilvusProcess(tmp_path_factory.mktemp("milvus"))
    with FileLock(Path(tempfile.gettempdir()) / "mtn-milvus.lock"):
        server.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MTN_MILVUS_ALLOW", server.uri)
            yield server
        server.stop()


@pytest.fixture(params=["lite", pytest.param("server", marks=pytest.mark.slow)])
def milvus_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where Milvus is: a file of Milvus Lite, or the server."""
    if request.param == "lite":
        return str(tmp_path / "memory.db")
    uri: str = request.getfixturevalue("milvus_server").uri
    return uri


@pytest.fixture
def milvus_permission(tmp_path: Path) -> Iterator[None]:
    """To connect to what a model's folder names; not by `monkeypatch`, which tests undo."""
    ours = [str(tmp_path / f"{name}.db") for name in ("memory", "m", "a")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTN_MILVUS_ALLOW", ",".join([*ours, os.environ.get("MTN_MILVUS_ALLOW", "")]))
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes that run tests at once; who writes into it takes the lock beside it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def grid_data(shared_folder: Path) -> Path:
    """A folder of 20 classes with long names, and an image beside each vector."""
    folder = shared_folder / "twenty"
    with FileLock(shared_folder / "twenty.lock"):
        return folder if folder.exists() else grids.write_twenty_classes(folder)


@pytest.fixture(scope="session")
def grid_report(grid_data: Path, shared_folder: Path) -> Path:
    """A report of every target, without the methods that take longest; tests do not change it."""
    folder = shared_folder / "report"
    with FileLock(shared_folder / "report.lock"):
        return folder if folder.exists() else grids.write_whole_report(grid_data, folder)
