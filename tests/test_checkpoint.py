"""State on disk: whole or not at all, and never believed when damaged."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from mtn import checkpoint
from mtn.errors import InputError
from mtn.model import Head

TENSORS = {
    "float32": torch.tensor([[1.5, -0.0], [float("inf"), float("nan")]]),
    "float64": torch.tensor([1e300], dtype=torch.float64),
    "float16": torch.tensor([0.5, 65504], dtype=torch.float16),
    "bfloat16": torch.tensor([1.0, 3.0], dtype=torch.bfloat16),
    "int64": torch.tensor([2**62, -1]),
    "int32": torch.tensor([[7]], dtype=torch.int32),
    "uint8": torch.arange(5, dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(3),
    "scalar_bool": torch.tensor(True),
    "empty": torch.zeros(0, 4),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
}
FACTS = {"task": 1, "step": 0, "history": {"correct": [[1, 2], [3]], "name": "Ä", "none": None}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, {"w": torch.arange(6.0).reshape(2, 3), "seen": torch.tensor(2)}, {"task": 1, "name": "mtn"})
    return path


def test_tensors_and_facts_come_back_as_they_were(tmp_path):
    checkpoint.save(tmp_path / "state", TENSORS, FACTS)
    tensors, facts = checkpoint.load(tmp_path / "state")
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype and tensors[name].shape == tensor.shape, name
        assert torch.equal(tensors[name].nan_to_num(), tensor.nan_to_num()), name


def test_no_tensors_at_all_come_back_too(tmp_path):
    checkpoint.save(tmp_path / "state", {}, FACTS)
    assert checkpoint.load(tmp_path / "state") == ({}, FACTS)


def test_tensors_that_share_memory_or_need_gradients_can_be_saved(tmp_path):
    whole = torch.arange(4.0, requires_grad=True)
    checkpoint.save(tmp_path / "state", {"whole": whole, "part": whole[:2], "again": whole}, {})
    tensors, _ = checkpoint.load(tmp_path / "state")
    assert tensors["part"].tolist() == [0, 1]
    assert tensors["again"].tolist() == tensors["whole"].tolist() == [0, 1, 2, 3]


def test_what_is_loaded_does_not_change_with_the_file(saved):
    tensors, _ = checkpoint.load(saved)
    checkpoint.save(saved, {"w": torch.full((2, 3), -1.0)}, {})
    assert tensors["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


# ---- damage


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        checkpoint.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_flipped_byte_in_the_tensors_is_noticed(saved):
    whole = saved.read_bytes()
    for place in range(1, 33):  # 6 floats and 1 integer stand at the end: 6 x 4 + 8 = 32 bytes
        damaged = bytearray(whole)
        damaged[-place] ^= 0x10
        saved.write_bytes(damaged)
        assert "checksum" in refused(saved)


def test_a_flipped_bit_anywhere_is_noticed(saved):
    whole = saved.read_bytes()
    unnoticed = []
    for place in range(len(whole)):
        for bit in (0, 5):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            saved.write_bytes(damaged)
            try:
                checkpoint.load(saved)
            except InputError as error:
                assert str(saved) in str(error)
            else:
                unnoticed.append(bytes(damaged[max(place - 12, 0) : place + 4]))
    assert not unnoticed


def test_a_changed_fact_is_noticed(saved):
    """Facts say where a run goes on: with a wrong one it would go on elsewhere."""
    assert saved.read_bytes().count(b'task\\": 1') == 1
    saved.write_bytes(saved.read_bytes().replace(b'task\\": 1', b'task\\": 3'))
    refused(saved)


def test_a_changed_shape_is_noticed(saved):
    assert saved.read_bytes().count(b"[2,3]") == 1
    saved.write_bytes(saved.read_bytes().replace(b"[2,3]", b"[3,2]"))
    refused(saved)


def test_a_truncated_file_is_refused_wherever_it_ends(saved):
    whole = saved.read_bytes()
    for length in range(len(whole)):
        saved.write_bytes(whole[:length])
        refused(saved)


def test_trailing_bytes_are_refused(saved):
    saved.write_bytes(saved.read_bytes() + b"\0")
    refused(saved)


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, tmp_path / "other.safetensors")
    assert "not a state of mtn" in refused(tmp_path / "other.safetensors")


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("write", [lambda value, path: path.write_bytes(pickle.dumps(value)), torch.save])
def test_a_pickle_is_refused_and_not_executed(tmp_path, write):
    path, sprung = tmp_path / "state.safetensors", tmp_path / "sprung"
    write(Trap(sprung), path)
    refused(path)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))  # the trap does work
    assert sprung.exists()


def test_damaged_json_is_named(tmp_path):
    path = tmp_path / "result.json"
    for content in (b'{"a": 1', b"\xff\xfe", b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"result\.json is damaged"):
            checkpoint.read_json(path)


# ---- writing


def test_json_comes_back_and_stays_readable(tmp_path):
    value = {"names": ["Ä", "b"], "none": None, "x": [1.5]}
    checkpoint.write_json(tmp_path / "a.json", value)
    assert checkpoint.read_json(tmp_path / "a.json") == value
    assert "Ä" in (tmp_path / "a.json").read_text("utf-8")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "result.json"
    checkpoint.write_json(path, [1])

    def fails(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        checkpoint.write(path, fails)
    assert json.loads(path.read_text()) == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_is_whole_until_the_new_one_is(tmp_path):
    path = tmp_path / "text"
    path.write_text("old")

    def fill(temporary: Path) -> None:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent  # a rename is atomic only within a file system

    checkpoint.write(path, fill)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_keeps_the_old_state(saved):
    with pytest.raises(TypeError):
        checkpoint.save(saved, {"w": torch.zeros(2)}, {"not": {"a", "fact"}})
    assert checkpoint.load(saved)[1] == {"task": 1, "name": "mtn"}
    assert list(saved.parent.iterdir()) == [saved]


def test_a_written_file_can_be_read_by_those_who_could_read_any_other(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    checkpoint.write_text(tmp_path / "written", "text")
    assert oct(os.stat(tmp_path / "written").st_mode) == oct(os.stat(ordinary).st_mode)


# ---- one writer


def test_a_folder_is_locked_for_others_until_it_is_left(tmp_path):
    for _ in range(2):
        with (
            checkpoint.lock(tmp_path),
            pytest.raises(InputError, match=f"another process is at work in {tmp_path}"),
            checkpoint.lock(tmp_path),
        ):
            pytest.fail("the second one must not get in")


def test_a_lock_is_freed_by_an_error_which_stays_what_it_is(tmp_path):
    for error in (KeyError, BlockingIOError):  # the latter comes from a full terminal, too
        with pytest.raises(error), checkpoint.lock(tmp_path):
            raise error
    with checkpoint.lock(tmp_path):
        pass


# ---- into a module


class Growing(nn.Module):
    """A part of fixed size, a growing one, a frozen one and a buffer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.fixed = nn.Linear(2, 3)
        self.head = Head(3)
        self.head.grow(classes)
        self.frozen = nn.Parameter(torch.full((2,), float(classes)), requires_grad=False)
        self.register_buffer("seen", torch.tensor(classes))


@pytest.mark.parametrize("classes", [1, 4, 9])
def test_restore_fits_growing_parts_of_any_size(classes):
    big, other = Growing(4), Growing(classes)
    checkpoint.restore(other, big.state_dict())
    x = torch.randn(5, 2)
    assert torch.equal(other.head(other.fixed(x)), big.head(big.fixed(x)))
    assert int(other.seen) == 4 and other.head.weight.shape == (4, 3)
    assert other.head.weight.requires_grad and not other.frozen.requires_grad
    assert {name for name, _ in other.named_parameters()} == {name for name, _ in big.named_parameters()}
    assert {name for name, _ in other.named_buffers()} == {"seen"}


def test_a_restored_module_trains_on(tmp_path):
    checkpoint.save(tmp_path / "state", Growing(4).state_dict(), {})
    module = Growing(1)
    checkpoint.restore(module, checkpoint.load(tmp_path / "state")[0])
    module.head(module.fixed(torch.ones(1, 2))).sum().backward()
    assert module.head.weight.grad.shape == (4, 3)


@pytest.mark.parametrize("change", [lambda state: state.pop("seen"), lambda state: state.update(extra=torch.ones(1))])
def test_restore_refuses_other_tensors_and_names_them(change):
    state = dict(Growing(2).state_dict())
    change(state)
    with pytest.raises(InputError, match=r"Growing.*(seen|extra)"):
        checkpoint.restore(Growing(2), state)


def test_take_undoes_put():
    tensors = {"a": torch.ones(1), "b.c": torch.zeros(2)}
    both = checkpoint.put(tensors, "method.") | checkpoint.put({"x": torch.ones(3)}, "memory.")
    assert sorted(both) == ["memory.x", "method.a", "method.b.c"]
    assert checkpoint.take(both, "method.") == tensors
