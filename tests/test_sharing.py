"""A classifier pushed to a hub and opened from it, against a hub on loopback."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from classifiers import classifier
from cluster_data import TRAIN
from hub_server import HubServer
from mtn import MTNClassifier
from mtn.classifier import card
from mtn.errors import InputError, UnavailableError
from mtn.search import new_location

NAME, TOKEN = "somebody/clusters", "hf_secret"


@pytest.fixture
def pushed(hub: HubServer, fitted: MTNClassifier) -> str:
    """The URL of the commit that a push made."""
    hub.writers.add(TOKEN)
    return fitted.push_to_hub(NAME, token=TOKEN, commit_message="The first one")


def files(hub: HubServer, branch: str = "main") -> dict[str, bytes]:
    hosted = hub.repositories[NAME]
    return hosted.commits[hosted.branches[branch]]


def test_a_model_comes_back_as_it_was_pushed(hub: HubServer, pushed: str, fitted: MTNClassifier) -> None:
    hosted = hub.repositories[NAME]
    assert pushed == f"{hub.url}/{NAME}/commit/{hosted.branches['main']}" and hosted.messages[-1] == "The first one"
    again = MTNClassifier.from_pretrained(NAME)
    np.testing.assert_array_equal(again.predict_proba(TRAIN[:9]), fitted.predict_proba(TRAIN[:9]))
    assert again.explain(TRAIN[:2]) == fitted.explain(TRAIN[:2]) and again.history_ == fitted.history_
    kinds = {Path(name).suffix for name in files(hub) if name != ".gitattributes"}
    assert kinds == {".json", ".md", ".safetensors"}
    again.partial_fit(TRAIN[:3] + 5, ["new"] * 3).save(hub.cache / "mine")  # it goes on like any other
    assert MTNClassifier.from_pretrained(hub.cache / "mine").classes_.tolist() == again.classes_.tolist()


def test_the_card_says_what_the_model_is_and_leaves_the_licence_to_its_owner(
    hub: HubServer, pushed: str, fitted: MTNClassifier
) -> None:
    text = files(hub)["README.md"].decode()
    import huggingface_hub

    data = huggingface_hub.ModelCard(text).data
    assert data.library_name == "mtn" and data.license is None and data.pipeline_tag == "tabular-classification"
    assert f'MTNClassifier.from_pretrained("{NAME}")' in text and "| lesson | samples |" in text
    assert all(f"| {label} | " in text for label in fitted.classes_)
    (entry,) = fitted.history_
    estimate = entry["estimated_accuracy"]
    assert f"| 1 | {entry['samples']} | 12 | 12 | - | {'-' if estimate is None else f'{100 * estimate:.1f} %'}" in text
    hosted, own = hub.repositories[NAME], text.replace("library_name: mtn", "library_name: mtn\nlicense: mit")
    assert own != text
    hosted.commit({**files(hub), "README.md": own.replace("---\n\n", "---\n\nMy own words.\n\n").encode()})
    fitted.forget(fitted.classes_[0]).push_to_hub(NAME, token=TOKEN)
    text = files(hub)["README.md"].decode()
    assert huggingface_hub.ModelCard(text).data.license == "mit" and text.count("My own words.") == 1
    assert "# A classifier of 11 classes" in text and "# A classifier of 12 classes" not in text
    assert text.count(card.BEGIN) == text.count(card.END) == 1


def test_a_push_replaces_what_was_there(hub: HubServer, pushed: str, fitted: MTNClassifier) -> None:
    before = files(hub)
    label = fitted.classes_[0]
    fitted.forget(label).push_to_hub(NAME, token=TOKEN)
    tensors = {name for name in files(hub) if name.endswith(".safetensors")}
    named = {entry["name"] for entry in json.loads(files(hub)["model.json"])["files"].values()}
    assert tensors == named and len(tensors) == 2 and not tensors & before.keys()
    assert label not in MTNClassifier.from_pretrained(NAME).classes_
    first = next(commit for commit, content in hub.repositories[NAME].commits.items() if content == before)
    assert label in MTNClassifier.from_pretrained(NAME, revision=first).classes_
    assert label in MTNClassifier.from_pretrained(f"{NAME}@{first}").classes_


def test_a_private_model_needs_its_token(hub: HubServer, fitted: MTNClassifier) -> None:
    hub.writers.add(TOKEN)
    with pytest.raises(InputError, match=f"{hub.url} refuses {NAME}: .*401"):
        fitted.push_to_hub(NAME, token="wrong")
    fitted.push_to_hub(NAME, token=TOKEN, private=True)
    with pytest.raises(InputError, match=f"no repository {NAME} at {hub.url}, or a private one"):
        MTNClassifier.from_pretrained(NAME)
    assert MTNClassifier.from_pretrained(NAME, token=TOKEN).classes_.tolist() == fitted.classes_.tolist()


def test_a_model_of_the_hub_is_a_stranger_s(hub: HubServer, pushed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage is one line, other files do not come, and what the model names is neither imported nor fetched."""
    content, hosted = dict(files(hub)), hub.repositories[NAME]
    (weights,) = (name for name in content if name.startswith("weights-"))
    hosted.commit({**content, weights: content[weights][:-1] + bytes([content[weights][-1] ^ 1])})
    with pytest.raises(InputError, match=r"weights-.* is damaged: it is not the file that was saved"):
        MTNClassifier.from_pretrained(NAME)
    hosted.commit({**content, "setup.py": b"raise SystemExit", "memory.bin": b"pickle", "onnx/model.onnx": b""})
    MTNClassifier.from_pretrained(NAME)
    assert {file.suffix for file in hub.cache.rglob("snapshots/*/*")} == {".json", ".md", ".safetensors"}
    hub.add("somebody/nothing", {"README.md": b"# Nothing"})
    with pytest.raises(InputError, match="holds no model"):
        MTNClassifier.from_pretrained("somebody/nothing")
    with pytest.raises(InputError, match="must be a folder or OWNER/NAME of the hub, got 'nothing'"):
        MTNClassifier.from_pretrained("nothing")


def test_an_encoder_that_a_model_of_the_hub_names_is_not_fetched(
    hub: HubServer, pushed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTN_DOWNLOAD", "1")
    taught = classifier(encoder="hashing").fit(["a b", "c d", "a c", "b d"], ["x", "y", "x", "y"])
    taught.encoder = "somebody/encoder"
    taught.push_to_hub(NAME, token=TOKEN)
    assert b"pipeline_tag: tabular" in files(hub)["README.md"]  # the metadata of the card that was there
    again, asked = MTNClassifier.from_pretrained(NAME), len(hub.requests)
    with pytest.raises(InputError, match="`mtn encoders get somebody/encoder` fetches it, if you trust it"):
        again.predict(["a b"])
    assert len(hub.requests) == asked
    assert MTNClassifier.from_pretrained(NAME, encoder="hashing").predict(["a b"]).tolist() == ["x"]


def test_without_the_hub_the_cached_model_is_opened(
    hub: HubServer, pushed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    MTNClassifier.from_pretrained(NAME)
    for name, value in (("HF_HUB_OFFLINE", True), ("ENDPOINT", "http://127.0.0.1:9")):
        with monkeypatch.context() as patch:
            patch.setattr(huggingface_hub.constants, name, value)
            assert len(MTNClassifier.from_pretrained(NAME).classes_) == 12
            with pytest.raises(InputError, match=r"HF_HUB_OFFLINE is set|cannot be reached"):
                MTNClassifier.from_pretrained("somebody/else")


def test_what_cannot_be_pushed_is_one_line(
    hub: HubServer, fitted: MTNClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(UnavailableError, match="cannot be reached"):
            fitted.push_to_hub(NAME, token=TOKEN)
    with pytest.raises(InputError, match="is not the name of a repository"):
        fitted.push_to_hub("a/b/c", token=TOKEN)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: fitted.push_to_hub(NAME), lambda: MTNClassifier.from_pretrained(NAME)):
        with pytest.raises(InputError, match=r"pip install '.*\[hub\]'"):
            call()


def test_exemplars_in_milvus_are_not_pushed(
    hub: HubServer, fitted: MTNClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(fitted.state_.memory.store), "location", new_location("memory.db"))
    with pytest.raises(InputError, match=r"in Milvus, which cannot be pushed: classifier\.move_memory\(None\) first"):
        fitted.push_to_hub(NAME, token=TOKEN)
    assert not hub.requests
