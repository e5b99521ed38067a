"""Augmentation, and the network that features are learned with."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mtn.config import Images
from mtn.encoders import augment, backbone
from mtn.errors import InputError

IMAGES = torch.randint(0, 256, (6, 16, 16, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
STILL = Images(side=16, crop=1.0, flip=False, jitter=0.0)


def restored(x: torch.Tensor) -> torch.Tensor:
    return x * augment.STD[:, None, None] + augment.MEAN[:, None, None]


def test_settings_that_change_nothing_give_the_image_back() -> None:
    x = augment.augment(IMAGES, STILL)
    assert torch.equal(x, augment.plain(IMAGES))
    torch.testing.assert_close(restored(x), IMAGES.permute(0, 3, 1, 2) / 255)
    floats = IMAGES.permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(augment.crop(floats, 1.0, flip=False), floats, atol=1e-4, rtol=0)


def test_every_image_is_changed_in_its_own_way_and_the_seed_decides_how() -> None:
    same = IMAGES[:1].expand(6, -1, -1, -1)
    for how in (Images(crop=0.3, flip=False, jitter=0.0), Images(crop=1.0, flip=False, jitter=0.5)):
        torch.manual_seed(1)
        first = augment.augment(same, how)
        torch.manual_seed(1)
        assert torch.equal(first, augment.augment(same, how))
        assert all(not torch.allclose(first[0], other, atol=0.01) for other in first[1:])
        assert not torch.allclose(first, augment.augment(same, how), atol=0.01)


def test_a_flip_mirrors_some_images_and_leaves_the_others() -> None:
    torch.manual_seed(0)
    floats = IMAGES.permute(0, 3, 1, 2) / 255
    mirrored = augment.crop(floats, 1.0, flip=True)
    kinds = [
        (bool(torch.allclose(now, x, atol=1e-4)), bool(torch.allclose(now, x.flip(2), atol=1e-4)))
        for now, x in zip(mirrored, floats, strict=True)
    ]
    assert set(kinds) == {(True, False), (False, True)}


def test_a_crop_shows_a_part_that_lies_inside() -> None:
    """A picture whose brightness is its column stays between the first and the last, and in order."""
    ramp = torch.linspace(0, 1, 16).expand(200, 3, 16, 16)
    torch.manual_seed(0)
    rows = augment.crop(ramp, 0.1, flip=False)[:, 0, 8]
    assert rows.min() >= 0 and rows.max() <= 1 and (rows.diff(dim=1) >= -1e-6).all()
    spans = rows[:, -1] - rows[:, 0]
    assert spans.min() < 0.5 and spans.max() > 0.8


def test_jitter_keeps_a_grey_image_grey_and_blends_as_it_says() -> None:
    torch.manual_seed(0)
    grey = 255 * torch.rand(5, 1, 8, 8).expand(-1, 3, -1, -1)
    changed = restored(augment.jitter(grey, 0.4))
    torch.testing.assert_close(changed[:, 0], changed[:, 2])
    assert not torch.allclose(changed, grey / 255, atol=0.01)
    torch.manual_seed(1)
    colour = torch.rand(5, 3, 8, 8)
    changed = restored(augment.jitter(255 * colour, 0.4))
    torch.manual_seed(1)
    torch.rand(5, 3, 8, 8)
    b, c, s = 1 + 0.4 * torch.empty(3, 5, 1, 1, 1).uniform_(-1, 1)

    def grey_of(x: torch.Tensor) -> torch.Tensor:
        return (x * augment.GREY[:, None, None]).sum(1, keepdim=True)

    bright = b * colour
    contrast = c * bright + (1 - c) * grey_of(bright).mean((2, 3), keepdim=True)
    torch.testing.assert_close(changed, s * contrast + (1 - s) * grey_of(contrast))


@pytest.mark.parametrize(("side", "stem", "kernel"), [(32, None, 3), (64, None, 3), (65, None, 7), (32, "large", 7)])
def test_small_images_keep_their_first_pixels(side: int, stem: str | None, kernel: int) -> None:
    torch.manual_seed(0)
    network = backbone.make_backbone(Images(side=side, stem=stem, network="resnet10", width=4), signed=False)
    assert network.conv1.kernel_size == (kernel, kernel)
    seen = backbone.compute_features(network, torch.rand(2, 3, side, side))
    assert seen.x.shape == (2, 32) and [found.shape[1] for found in seen.maps] == [4, 8, 16, 32]
    torch.testing.assert_close(seen.x.norm(dim=1), torch.ones(2))


def test_signed_features_may_be_negative() -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 3, 16, 16)
    for signed in (False, True):
        network = backbone.make_backbone(Images(side=16, network="resnet10", width=4), signed)
        assert bool((backbone.compute_features(network, images).x < 0).any()) == signed


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_weights_come_from_a_checkpoint_without_its_classifier(suffix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = Images(side=16, width=4)
    source = backbone.make_backbone(small, signed=False)
    weights = {**source.state_dict(), "fc.weight": torch.zeros(10, 32), "fc.bias": torch.zeros(10)}
    path = tmp_path / f"weights.{suffix}"
    if suffix == "pt":
        torch.save(weights, path)
    else:
        save_file({name: weight.contiguous() for name, weight in weights.items()}, path)
    loaded = backbone.make_backbone(small.model_copy(update={"weights": str(path)}), signed=False)
    assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in source.state_dict().items())
    with pytest.raises(InputError, match=r"images\.weights: .*weights.*size mismatch"):
        backbone.make_backbone(Images(side=16, width=8, weights=str(path)), signed=False)


def test_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    for name in ("text.pt", "text.safetensors", "absent.pt"):
        with pytest.raises(InputError, match=rf"images\.weights: .*{name}"):
            backbone.make_backbone(Images(side=16, weights=str(tmp_path / name)), signed=False)
