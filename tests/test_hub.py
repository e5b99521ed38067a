"""Encoders of the hub: fetched when the user allows it, whole and verified or not at all, against a hub on loopback."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_checks import PICTURES, encode, refused
from hub_server import HubServer
from mtn import encoders
from mtn.encoders import catalogue
from mtn.encoders.trust import trusted_encoder
from mtn.errors import InputError, UnavailableError, install_line
from mtn.storage.recorded import Recorded

NAME = "some/model"


@pytest.fixture(scope="module")
def folder(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small vision model."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("vit")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **sizes)).save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture
def files(folder: Path) -> dict[str, bytes]:
    """What its repository holds: the model, and formats that are not to be fetched."""
    unsafe = {name: b"unsafe" for name in ("pytorch_model.bin", "code.py", "tf_model.h5", "onnx/model.onnx")}
    return {file.name: file.read_bytes() for file in folder.iterdir()} | unsafe | {"README.md": b"# A model"}


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTN_DOWNLOAD", "1")


def left_in(cache: Path) -> list[str]:
    return [file.name for file in cache.rglob("*") if ".incomplete" in file.name]


def test_nothing_is_asked_of_the_hub_unless_the_user_allows_it(hub: HubServer, files: dict[str, bytes], call) -> None:
    hub.add(NAME, files)
    with refused(f"encoder '{NAME}': its weights are not on this machine; `mtn encoders get {NAME}` fetches them"):
        encoders.load_encoder(NAME)
    code, _, error = call("new", "model", "--encoder", NAME)
    assert code == 2 and "--yes" in error and len(error.splitlines()) == 1
    assert not hub.requests and not Path("model").exists()


def test_an_encoder_is_fetched_in_safe_formats_and_its_commit_recorded(
    hub: HubServer, files: dict[str, bytes], folder: Path, allowed: None
) -> None:
    commit = hub.add(NAME, files).branches["main"]
    encoder = encoders.load_encoder(NAME)
    assert encoder.identity()["revision"] == commit and encoder.identity()["name"] == NAME
    expected = encoders.load_encoder(str(folder))
    np.testing.assert_array_equal(encode(encoder, PICTURES[:2]), encode(expected, PICTURES[:2]))
    cached = catalogue.cached_folder(NAME)
    assert cached is not None and {file.name for file in cached.rglob("*")} == {file.name for file in folder.iterdir()}
    asked = len(hub.requests)
    encoders.load_encoder(NAME)
    assert len(hub.requests) == asked  # from the cache


def test_a_name_that_a_file_gives_is_never_fetched(hub: HubServer, files: dict[str, bytes], allowed: None) -> None:
    hub.add(NAME, files)
    hub.add("openai/clip-vit-base-patch32", files)
    for name in (NAME, "clip-vit-b32", f"{NAME}@main", f"{NAME}@{'0' * 40}"):
        with refused("neither in the package nor in the local hub cache"):
            encoders.load_encoder(Recorded(name))
    assert not hub.requests


def test_a_model_s_encoder_is_that_of_its_commit_when_the_branch_has_moved_on(
    hub: HubServer, files: dict[str, bytes], allowed: None
) -> None:
    hosted = hub.add(NAME, files)
    first = encoders.load_encoder(NAME).identity()
    config = files["config.json"].replace(b'"layer_norm_eps": 1e-12', b'"layer_norm_eps": 1e-3')
    assert config != files["config.json"]
    second = hosted.commit({**files, "config.json": config})
    hosted.branches["v1.0"] = first["revision"]
    catalogue.fetch_encoder(NAME)
    assert encoders.load_encoder(NAME).identity()["revision"] == second
    for name in (NAME, Recorded(NAME), f"{NAME}@v1.0"):  # as the user, a model's parameters and its identity name it
        recorded = trusted_encoder(Recorded(name), {**first, "name": str(name)})
        assert encoders.load_encoder(recorded).identity() == first
    tagged = encoders.load_encoder(f"{NAME}@v1.0").identity()
    assert tagged["revision"] == first["revision"] and tagged["name"] == f"{NAME}@v1.0"
    assert encoders.load_encoder(f"{NAME}@{second}").identity()["config"] != first["config"]
    unknown = trusted_encoder(
        None, {**first, "revision": "0" * 40}
    )  # a commit that is gone: the branch's, if it is alike
    assert encoders.load_encoder(unknown).identity()["revision"] == second


def test_a_short_name_is_fetched_at_its_commit(hub: HubServer, files: dict[str, bytes]) -> None:
    entry = catalogue.CATALOGUE["clip-vit-b32"]
    assert entry.repository is not None and entry.revision is not None
    hosted = hub.add(entry.repository, {name: content for name, content in files.items() if "safetensors" not in name})
    with refused("no revision"):
        catalogue.fetch_encoder("clip-vit-b32")
    hosted.commits[entry.revision] = files
    assert catalogue.fetch_encoder("clip-vit-b32").name == entry.revision
    assert catalogue.state("clip-vit-b32") == "cached" and catalogue.state("dinov2-b14") == "to be fetched"
    with refused("has no weights in safetensors, and no other format is fetched"):
        catalogue.fetch_encoder(entry.repository)


# ---- what goes wrong on the way


def test_a_download_that_was_cut_is_resumed_where_it_was(
    hub: HubServer, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.add(NAME, files)
    hub.cut["model.safetensors"] = [10_000, 5_000]
    fetched = catalogue.fetch_encoder(NAME)
    assert (fetched / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert hub.ranges == ["model.safetensors bytes=10000-", "model.safetensors bytes=15000-"]


@pytest.mark.parametrize("name", ["model.safetensors", "preprocessor_config.json"])
def test_a_download_that_stays_cut_leaves_nothing_half_used(
    hub: HubServer, files: dict[str, bytes], allowed: None, name: str
) -> None:
    hub.add(NAME, files)
    hub.cut[name] = [0] * 6
    with pytest.raises(UnavailableError, match="cannot be reached: peer closed connection"):
        encoders.load_encoder(NAME)
    for known in (NAME, f"{NAME}@{hub.repositories[NAME].branches['main']}"):
        assert catalogue.cached_folder(known) is None
    assert not left_in(hub.cache)
    encoders.load_encoder(NAME)  # the next time it comes


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_with_another_checksum_is_refused_and_deleted(
    hub: HubServer, files: dict[str, bytes], name: str
) -> None:
    hub.add(NAME, files)
    content = files[name]
    hub.altered[name] = content[:-1] + bytes([content[-1] ^ 1])
    with refused(f"{name} must have the checksum .*: it is deleted"):
        catalogue.fetch_encoder(NAME)
    assert catalogue.cached_folder(NAME) is None and not any(file.name == name for file in hub.cache.rglob("*"))
    del hub.altered[name]
    assert (catalogue.fetch_encoder(NAME) / name).read_bytes() == content


def test_a_part_of_the_weights_is_not_a_model(hub: HubServer, files: dict[str, bytes]) -> None:
    weights = files.pop("model.safetensors")
    index = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    shards = {f"model-0000{part}-of-00002.safetensors": weights for part in (1, 2)}
    hub.add(NAME, files | shards | {"model.safetensors.index.json": index})
    fetched = catalogue.fetch_encoder(NAME)
    assert catalogue.cached_folder(NAME) == fetched
    (fetched / "model-00002-of-00002.safetensors").unlink()
    assert catalogue.cached_folder(NAME) is None


def test_what_the_hub_refuses_is_one_line(
    hub: HubServer, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    hub.add("some/private", files, token="secret")
    hub.add("some/gated", files, gated=True)
    hub.add(NAME, files)
    for name in ("some/private", "some/absent"):
        with refused(f"no repository {name} at {hub.url}, or a private one: `hf auth login`, or HF_TOKEN"):
            catalogue.fetch_encoder(name)
    assert catalogue.fetch_encoder("some/private", token="secret").is_dir()
    with refused("some/gated is open to those who accept its terms"):
        catalogue.fetch_encoder("some/gated")
    with refused("the repository some/model has no revision 'v2'"):
        catalogue.fetch_encoder(f"{NAME}@v2")
    with refused("not one of the hub"):
        catalogue.fetch_encoder("hashing")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with refused("some/model cannot be fetched: HF_HUB_OFFLINE is set"):
        catalogue.fetch_encoder(NAME)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        catalogue.fetch_encoder(NAME)


def test_a_full_disk_is_one_line_and_leaves_nothing_half_used(
    hub: HubServer, files: dict[str, bytes], disk: Path, call, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(disk))
    hub.add(NAME, {**files, "model.safetensors": bytes(2_000_000)})
    with pytest.warns(UserWarning, match="Not enough free disk space"):
        code, out, error = call("encoders", "get", NAME)
    assert code == 2 and not out and error.splitlines()[-1] == f"error: {disk}: No space left on device"
    assert catalogue.cached_folder(NAME) is None and not left_in(disk)


# ---- commands


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_user_is_asked(
    hub: HubServer, files: dict[str, bytes], call, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, files)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    code, _, error = call("new", "model", "--encoder", NAME)
    size = sum(len(content) for name, content in files.items() if name.endswith((".json", ".safetensors")))
    assert code == 2 and f"fetch {NAME}: {size / 1e3:.0f} kB of {NAME} from the hub? [y/N]" in error
    assert catalogue.cached_folder(NAME) is None
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert call("new", "model", "--encoder", NAME)[0] == 0 and Path("model/model.json").is_file()


def test_yes_is_an_answer_too(hub: HubServer, files: dict[str, bytes], call) -> None:
    hub.add(NAME, files)
    assert call("new", "model", "--encoder", NAME, "--yes")[:2] == (
        0,
        "model: takes images, 32 numbers each; next: mtn learn model DATA\n",
    )


def test_the_list_says_what_each_takes_and_whether_it_is_here(hub: HubServer, call) -> None:
    code, out, _ = call("encoders")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0 and set(encoders.ENCODERS) <= set(rows) and not hub.requests
    assert rows["glyph"].endswith("installed") and "Apache-2.0" in rows["dinov2-b14"] and " 346 " in rows["dinov2-b14"]
    assert rows["dinov2-b14"].endswith("to be fetched") and rows["hashing"].split()[1:3] == ["sentences", "512"]


def test_the_table_tells_the_truth_about_what_is_in_the_package() -> None:
    for name in ("glyph", "hashing"):
        encoder, entry = encoders.load_encoder(name), catalogue.CATALOGUE[name]
        assert (encoder.kind, encoder.dimension) == (entry.kind, entry.width)


LIGHT = "import sys; from mtn.__main__ import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"


def test_the_environment_of_huggingface_hub_is_honoured_and_torch_is_not_loaded(
    hub: HubServer, files: dict[str, bytes], tmp_path: Path
) -> None:
    commit = hub.add("some/private", files, token="secret").branches["main"]
    home = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url, "HF_TOKEN": "secret", "HF_HUB_DISABLE_XET": "1"}

    def mtn(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", LIGHT, *words]
        return subprocess.run(command, env={**os.environ, **home}, capture_output=True, text=True)

    got = mtn("encoders", "get", "some/private@main")
    assert got.returncode == 0 and got.stdout.strip().endswith(f"models--some--private/snapshots/{commit}")
    listed = mtn("encoders", "--json")
    assert listed.returncode == 0 and '"state": "installed"' in listed.stdout


def test_speed_is_measured_of_what_is_here(hub: HubServer, call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "CATALOGUE", {name: catalogue.CATALOGUE[name] for name in ("hashing", "dinov2-s14")})
    code, out, _ = call("encoders", "--measure")
    header, hashing, dino = out.splitlines()
    assert code == 0 and header.endswith("a second") and float(hashing.split()[-1]) > 10 and dino.split()[-1] == "-"


def test_a_missing_library_prints_its_install_line(monkeypatch: pytest.MonkeyPatch, allowed: None) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install '.*\[encoders\]'"):
        encoders.load_encoder(NAME)
    assert catalogue.state("clip-vit-b32") == "to be fetched"


def test_a_missing_library_is_named_before_anything_is_fetched(
    hub: HubServer, files: dict[str, bytes], call, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("some/vision", files)
    hub.add("some/sentences", {**files, "modules.json": b"[]"})
    for name, library in (("some/vision", "transformers"), ("some/sentences", "sentence_transformers")):
        monkeypatch.setitem(sys.modules, library, None)
        code, _, error = call("new", "model", "--encoder", name, "--yes")
        assert code == 2 and f"this encoder needs {library}: {install_line('encoders')}" in error
    assert not any("/resolve/" in request for request in hub.requests)
