"""Independent random generators, one for each purpose."""

import hashlib

import torch


def generator(*key: object) -> torch.Generator:
    """A generator seeded by `key` alone: how many numbers one part of a program draws never shifts another's."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
