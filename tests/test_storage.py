"""State on disk: whole or not at all, and never believed when damaged."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mtn.errors import InputError
from mtn.model import Head
from mtn.storage import files
from mtn.storage.tensors import add_prefix, load_tensors, restore_module, save_tensors, strip_prefix

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
    save_tensors(path, {"w": torch.arange(6.0).reshape(2, 3), "seen": torch.tensor(2)}, {"task": 1, "name": "mtn"})
    return path


def test_tensors_and_facts_come_back_as_they_were(tmp_path):
    save_tensors(tmp_path / "state", TENSORS, FACTS)
    tensors, facts = load_tensors(tmp_path / "state")
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype and tensors[name].shape == tensor.shape, name
        assert torch.equal(tensors[name].nan_to_num(), tensor.nan_to_num()), name


def test_no_tensors_at_all_come_back_too(tmp_path):
    save_tensors(tmp_path / "state", {}, FACTS)
    assert load_tensors(tmp_path / "state") == ({}, FACTS)


def test_tensors_that_share_memory_or_need_gradients_can_be_saved(tmp_path):
    whole = torch.arange(4.0, requires_grad=True)
    save_tensors(tmp_path / "state", {"whole": whole, "part": whole[:2], "again": whole}, {})
    tensors, _ = load_tensors(tmp_path / "state")
    assert tensors["part"].tolist() == [0, 1]
    assert tensors["again"].tolist() == tensors["whole"].tolist() == [0, 1, 2, 3]


def test_what_is_loaded_does_not_change_with_the_file(saved):
    tensors, _ = load_tensors(saved)
    save_tensors(saved, {"w": torch.full((2, 3), -1.0)}, {})
    assert tensors["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


# ---- damage


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_tensors(path)
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
                load_tensors(saved)
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
            files.read_json(path)


# ---- writing


def test_json_comes_back_and_stays_readable(tmp_path):
    value = {"names": ["Ä", "b"], "none": None, "x": [1.5]}
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json(tmp_path / "a.json") == value
    assert "Ä" in (tmp_path / "a.json").read_text("utf-8")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "result.json"
    files.write_json(path, [1])

    def fails(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        files.write(path, fails)
    assert json.loads(path.read_text()) == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_is_whole_until_the_new_one_is(tmp_path):
    path = tmp_path / "text"
    path.write_text("old")

    def fill(temporary: Path) -> None:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent  # a rename is atomic only within a file system

    files.write(path, fill)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_keeps_the_old_state(saved):
    with pytest.raises(TypeError):
        save_tensors(saved, {"w": torch.zeros(2)}, {"not": {"a", "fact"}})
    assert load_tensors(saved)[1] == {"task": 1, "name": "mtn"}
    assert list(saved.parent.iterdir()) == [saved]


def test_a_written_file_can_be_read_by_those_who_could_read_any_other(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    files.write_text(tmp_path / "written", "text")
    assert oct(os.stat(tmp_path / "written").st_mode) == oct(os.stat(ordinary).st_mode)


# ---- one writer


def test_a_folder_is_locked_for_others_until_it_is_left(tmp_path):
    for _ in range(2):
        with (
            files.lock(tmp_path),
            pytest.raises(InputError, match=f"another process is at work in {tmp_path}"),
            files.lock(tmp_path),
        ):
            pytest.fail("the second one must not get in")


def test_a_lock_is_freed_by_an_error_which_stays_what_it_is(tmp_path):
    for error in (KeyError, BlockingIOError):  # the latter comes from a full terminal, too
        with pytest.raises(error), files.lock(tmp_path):
            raise error
    with files.lock(tmp_path):
        pass


def test_a_lock_is_freed_when_its_process_is_killed(tmp_path):
    code = f"from pathlib import Path; from mtn.storage import files\nwith files.lock(Path({str(tmp_path)!r})): input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", code.replace("input()", "print(flush=True), input()")], **pipes
    ) as other:
        other.stdout.readline()
        with pytest.raises(InputError, match="another process is at work"), files.lock(tmp_path):
            pytest.fail("it is locked")
        other.kill()
        other.wait()
        with files.lock(tmp_path):
            pass


def test_a_lock_may_lose_its_file(tmp_path):
    """As where a model's folder goes again because nothing came of the model."""
    with files.lock(tmp_path):
        (tmp_path / ".lock").unlink()
        with files.lock(tmp_path):  # another file, hence another lock
            pass
    with files.lock(tmp_path):
        pass


def test_a_folder_that_cannot_be_locked_is_named_and_not_made(tmp_path):
    (tmp_path / "file").touch()
    for name, reason in (("absent", "No such file or directory"), ("file", "Not a directory")):
        with (
            pytest.raises(InputError, match=f"^cannot write in the folder {tmp_path / name}: {reason}$"),
            files.lock(tmp_path / name),
        ):
            pytest.fail("there is nothing to lock")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_cannot_be_locked(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"cannot write in the folder .*: Permission denied"), files.lock(tmp_path):
        pytest.fail("it is read-only")


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
    torch.manual_seed(0)
    big, other = Growing(4), Growing(classes)
    restore_module(other, big.state_dict())
    x = torch.randn(5, 2)
    assert torch.equal(other.head(other.fixed(x)), big.head(big.fixed(x)))
    assert int(other.seen) == 4 and other.head.weight.shape == (4, 3)
    assert other.head.weight.requires_grad and not other.frozen.requires_grad
    assert {name for name, _ in other.named_parameters()} == {name for name, _ in big.named_parameters()}
    assert {name for name, _ in other.named_buffers()} == {"seen"}


def test_a_restored_module_trains_on(tmp_path):
    torch.manual_seed(0)
    save_tensors(tmp_path / "state", Growing(4).state_dict(), {})
    module = Growing(1)
    restore_module(module, load_tensors(tmp_path / "state")[0])
    module.head(module.fixed(torch.ones(1, 2))).sum().backward()
    assert module.head.weight.grad.shape == (4, 3)


@pytest.mark.parametrize("change", [lambda state: state.pop("seen"), lambda state: state.update(extra=torch.ones(1))])
def test_restore_refuses_other_tensors_and_names_them(change):
    torch.manual_seed(0)
    state = dict(Growing(2).state_dict())
    change(state)
    with pytest.raises(InputError, match=r"Growing.*(seen|extra)"):
        restore_module(Growing(2), state)


def test_take_undoes_put():
    tensors = {"a": torch.ones(1), "b.c": torch.zeros(2)}
    both = add_prefix(tensors, "method.") | add_prefix({"x": torch.ones(3)}, "memory.")
    assert sorted(both) == ["memory.x", "method.a", "method.b.c"]
    assert strip_prefix(both, "method.") == tensors
