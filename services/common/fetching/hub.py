"""A model of the model hub as a source of copies: one commit of it, with the hub's own hashes."""

from pathlib import Path

from services.common.fetching.files import SourceFile, is_wanted
from services.common.model_source import hub_errors


class HubSource:
    """A repository of the hub at a revision, which is resolved once, so that all files are of one commit."""

    def __init__(self, repository: str, revision: str) -> None:
        self._repository = repository
        self._revision = revision
        self._commit = ""

    @property
    def name(self) -> str:
        return f"hf://{self._id}"

    @property
    def _id(self) -> str:
        return f"{self._repository}@{self._revision}"

    def files(self) -> list[SourceFile]:
        from huggingface_hub import HfApi

        with hub_errors(self._id):
            info = HfApi().model_info(self._repository, revision=self._revision, files_metadata=True)
        self._commit = info.sha or self._revision
        return [
            # A large file is stored under its sha256, any other one as a blob of git.
            SourceFile(found.rfilename, found.size or 0, sha256=found.lfs.sha256)
            if found.lfs is not None
            else SourceFile(found.rfilename, found.size or 0, git_hash=found.blob_id or "")
            for found in info.siblings or ()
            if is_wanted(found.rfilename)
        ]

    def fetch(self, file: SourceFile, folder: Path) -> None:
        from huggingface_hub import hf_hub_download

        with hub_errors(self._id):
            hf_hub_download(
                self._repository, file.name, revision=self._commit or self._revision, local_dir=folder
            )
