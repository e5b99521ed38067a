"""A classifier <-> a repository of the Hugging Face hub.

Names and arguments are those of huggingface_hub's ModelHubMixin. The mixin itself does not fit: it has to be imported
before the class is made, and huggingface_hub is optional here; and it keeps the parameters in a config.json, while
model.json has them.
"""

import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

from mtn.classifier import card, saving
from mtn.classifier.state import ClassifierState
from mtn.data.reader import EncoderSpec
from mtn.errors import InputError
from mtn.storage.repositories import Repository, reported_errors, require, shown_progress

TENSORS = ["weights-*.safetensors", "memory-*.safetensors"]
FILES = ["model.json", "README.md", *TENSORS]
"""All that is pushed, and all that is fetched."""


class HubMixin(ABC):
    """`push_to_hub` and `from_pretrained`, for a classifier that is saved in a folder."""

    @property
    @abstractmethod
    def state_(self) -> ClassifierState:
        """What has been learned."""

    @abstractmethod
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the constructor."""

    @classmethod
    @abstractmethod
    def load(cls, folder: str | Path, encoder: EncoderSpec | None = None, milvus: str | None = None) -> Self:
        """The model saved in a folder."""

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Push a classifier",
        private: bool | None = None,
        token: str | bool | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Write the model into a repository of the hub, which is made if it is not there; the URL of the commit.

        What is remembered goes with it: vectors, ids, thumbnails, sentences. Of a card that is there already,
        everything stays but what an earlier push has written, the licence too.
        """
        state = self.state_
        if state.memory.location is not None:
            raise InputError("the exemplars are in Milvus, which cannot be pushed: classifier.move_memory(None) first")
        api = require("huggingface_hub", "hub", "push_to_hub").HfApi(token=token)
        with tempfile.TemporaryDirectory() as scratch, reported_errors(Repository(repo_id, branch)), shown_progress():
            folder = Path(scratch) / "model"
            saving.save_state(state, folder, self.get_params(deep=False), None)
            repository = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            (folder / "README.md").write_text(_hub_card(api, repository, branch, state), "utf-8")
            options = {"revision": branch, "create_pr": create_pr, "allow_patterns": FILES, "delete_patterns": TENSORS}
            commit = api.upload_folder(repo_id=repository, folder_path=folder, commit_message=commit_message, **options)
        return str(commit.commit_url)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        encoder: EncoderSpec | None = None,
    ) -> Self:
        """The model in a repository of the hub, or in a folder.

        It is a stranger's: it is opened as `load` opens a folder, which runs nothing, and imports and fetches nothing
        that it names. `encoder` is as for `load`.
        """
        name = pretrained_model_name_or_path
        if Path(name).is_dir():
            return cls.load(name, encoder)
        repository = Repository.parse(str(name))
        if repository is None:
            raise InputError(
                f"pretrained_model_name_or_path must be a folder or OWNER/NAME of the hub, got {str(name)!r}"
            )
        hub = require("huggingface_hub", "hub", "from_pretrained")
        with reported_errors(repository), shown_progress():
            folder = hub.snapshot_download(
                repository.name,
                revision=revision or repository.revision,
                token=token,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                allow_patterns=FILES,
            )
        return cls.load(folder, encoder)


def _hub_card(api: Any, repository: str, branch: str | None, state: ClassifierState) -> str:
    """README.md for the hub: the metadata and the text that are there, with what the model is now."""
    hub, text = require("huggingface_hub"), ""
    if api.file_exists(repository, "README.md", revision=branch):
        text = Path(api.hf_hub_download(repository, "README.md", revision=branch)).read_text("utf-8")
    old = hub.ModelCard(text, ignore_metadata_errors=True) if text else None
    facts = card.hub_metadata(state) | ({} if old is None else old.data.to_dict())
    body = card.model_card(state, f'MTNClassifier.from_pretrained("{repository}")')
    metadata = hub.ModelCardData(**facts, ignore_metadata_errors=True).to_yaml()
    return f"---\n{metadata}\n---\n\n{card.merged('' if old is None else old.text, body)}"
