"""Glyphs: image data sets of up to 1 000 classes that need no download.

A class is a character; its images are that character in the twelve DejaVu text fonts that matplotlib brings along,
each shifted, scaled, rotated, sheared, thinned or thickened, noisy and partly hidden. Characters present in all twelve
fonts are taken, those that look alike are dropped, and 1 000 become the classes. The others, where they look like no
class, are left for pre-training the encoder.

Fonts are split so that training has seen every family (Sans, Sans Mono, Serif) and every style (regular, bold, slanted,
both), but never the combinations it is validated or tested on: a moderate shift, and one test font a family.

A hard set has the same characters and fonts, distorted further: its classes overlap.

Shapes: N images, S strokes (thin, plain, thick), R the side of a master drawing.
"""

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from mtn.encoders import glyph
from mtn.errors import InputError
from mtn.runtime.cache import cache_folder
from mtn.runtime.progress import Progress, silent
from mtn.storage import files

FONTS = {
    "train": ("Sans", "Sans-Bold", "Sans-Oblique", "SansMono", "SansMono-BoldOblique", "Serif", "Serif-BoldItalic"),
    "val": ("SansMono-Oblique", "Serif-Bold"),
    "test": ("Sans-BoldOblique", "SansMono-Bold", "Serif-Italic"),
}
COUNTS = {"train": 100, "val": 20, "test": 30}
"""Images a class; where there are more, they are drawn so many at a time."""
HARD_COUNTS = {"train": 1280, "val": 20, "test": 50}
"""Of a hard set: the paper's numbers."""
CLASSES, IMAGES = 1000, 10_000
"""The most classes, and training images of a class."""
SEED = 2022
FORMAT = 1
NAME = re.compile(r"glyphs-(\d{1,9}|1k)(?:x(\d{1,9}))?(-hard)?")
DONE = "done.json"
"""In an unfinished folder: images of each split that are drawn, encoded and on disk."""
BLOCK = 4096
"""Images that are drawn, encoded and written at a time: what is repeated after a kill. Eight batches of the encoder, as
matrix products of other shapes round differently."""

UPRIGHT = ("Sans", "SansMono", "Serif")  # one plain font a family decides what looks alike
LOOK_ALIKE = 0.97
POINTS, MASTER, FIT, SIDE = 96, 64, 48, 32  # font size; side of a master; its longest stroke; side of an image


@dataclass(frozen=True)
class Distortion:
    """How far an image may differ from the plain character: each field bounds a uniform random number."""

    rotation: float = 12.0  # degrees, either way
    shear: float = 0.2
    scale: tuple[float, float] = (0.75, 1.1)
    stretch: float = 0.15  # width against height
    shift: float = 3.0  # pixels of the image
    stroke: float = 0.9  # 1 is one master pixel on every edge
    contrast: tuple[float, float] = (0.6, 1.0)
    noise: float = 0.15
    occlusion: float = 10.0  # longest side of the hidden rectangle, pixels


EASY = Distortion()
HARD = Distortion(
    rotation=24.0, shear=0.3, scale=(0.65, 1.15), stretch=0.25, contrast=(0.4, 1.0), noise=0.25, occlusion=14.0
)
"""Chosen so that the average of SS-IL is near 70 % (docs/glyphs.md)."""


# --- characters ---------------------------------------------------------------------------------------------------


def font_file(font: str) -> Path:
    """Where matplotlib keeps the DejaVu font of this short name."""
    import matplotlib  # here: only glyphs need it, and it is slow to load

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"DejaVu{font}.ttf"


@lru_cache
def shared_characters() -> list[str]:
    """Visible characters that all twelve fonts have, in code point order."""
    from matplotlib.ft2font import FT2Font

    fonts = [font for split in FONTS.values() for font in split]
    codes = set.intersection(*(set(FT2Font(str(font_file(font))).get_charmap()) for font in fonts))
    return [character for character in map(chr, sorted(codes)) if is_visible(character)]


def is_visible(character: str) -> bool:
    """Whether a character is drawn, and not as a superscript: that is its letter once every size is the same."""
    stands_alone = unicodedata.category(character)[0] not in "ZCM"
    raised = unicodedata.decomposition(character).startswith(("<super>", "<sub>"))
    return stands_alone and not raised and load_face(UPRIGHT[0]).getmask(character).getbbox() is not None


def plain_bitmaps(characters: list[str], font: str) -> Tensor:
    """Unit-length 32 x 32 bitmaps, a row a character, by which look-alikes are recognised.

    Slightly blurred, so that neither stroke width nor half a pixel distinguishes `v` from `V`.
    """
    bitmaps = F.avg_pool2d(torch.from_numpy(draw(characters, font)).float().unsqueeze(1), MASTER // SIDE)
    return F.normalize(F.avg_pool2d(bitmaps, 3, 1, 1).flatten(1))


def drop_look_alikes(characters: list[str]) -> list[str]:
    """Keep a character unless an earlier one has nearly its bitmap in a plain font: А (Cyrillic) is A (Latin)."""
    bitmaps = [plain_bitmaps(characters, font) for font in UPRIGHT]
    cosine = torch.stack([b @ b.T for b in bitmaps]).amax(0).numpy()
    kept: list[int] = []
    for index in range(len(characters)):
        if not kept or cosine[index, kept].max() < LOOK_ALIKE:
            kept.append(index)
    return [characters[index] for index in kept]


@lru_cache
def class_characters() -> list[str]:
    """The characters of the 1 000 classes in label order.

    They are ordered by a hash of the character, so that adding or removing one does not move the others.
    """
    distinct = drop_look_alikes(shared_characters())
    return sorted(distinct, key=lambda c: hashlib.sha256(f"{SEED} {c}".encode()).digest())[:CLASSES]


def other_characters(font: str) -> list[str]:
    """The characters of a font for pre-training: shared ones that are no class and look like none."""
    classes = class_characters()
    others = sorted(set(shared_characters()) - set(classes))
    cosine = plain_bitmaps(others, font) @ plain_bitmaps(classes, font).T
    return [character for character, most in zip(others, cosine.amax(1), strict=True) if most < LOOK_ALIKE]


def class_name(character: str) -> str:
    """For example `U+0411 Б`."""
    return f"U+{ord(character):04X} {character}"


# --- drawing ------------------------------------------------------------------------------------------------------


@lru_cache
def load_face(font: str) -> ImageFont.FreeTypeFont:
    """The font at the size all masters are drawn from."""
    return ImageFont.truetype(str(font_file(font)), POINTS, layout_engine=ImageFont.Layout.BASIC)


def draw(characters: list[str], font: str) -> np.ndarray:
    """Master drawings (N, R, R): centred, and enlarged so that the longer side is the same for all."""
    face, masters = load_face(font), np.zeros((len(characters), MASTER, MASTER), np.uint8)
    for master, character in zip(masters, characters, strict=True):
        mask = face.getmask(character)
        box = mask.getbbox()
        size = box[2] - box[0], box[3] - box[1]
        width, height = (max(1, round(side * FIT / max(size))) for side in size)
        shape = Image.frombytes("L", mask.size, bytes(mask)).resize((width, height), Image.Resampling.BICUBIC, box)
        top, left = (MASTER - height) // 2, (MASTER - width) // 2
        master[top : top + height, left : left + width] = np.asarray(shape)
    return masters


def strokes(masters: np.ndarray) -> Tensor:
    """(N, R, R) drawings to (N, S, R, R) in 0..1: one pixel thinner, as drawn, one pixel thicker."""
    plain = torch.from_numpy(masters).float().unsqueeze(1) / 255
    thick, thin = F.max_pool2d(plain, 3, 1, 1), -F.max_pool2d(-plain, 3, 1, 1)
    return torch.cat([thin, plain, thick], 1)


def distort(strokes: Tensor, limits: Distortion, generator: np.random.Generator) -> Tensor:
    """One random image (N, 32, 32), floats in 0..1, of every master (N, S, R, R)."""
    image = transform(blend(strokes, limits, generator), limits, generator)
    contrast = uniform(generator, *limits.contrast, (len(image), 1, 1))
    image = occlude(image * contrast, limits, generator)
    grain = torch.from_numpy(generator.standard_normal(image.shape, np.float32))
    return (image + grain * uniform(generator, 0, limits.noise, (len(image), 1, 1))).clamp_(0, 1)


def uniform(generator: np.random.Generator, low: float, high: float, shape: tuple[int, ...]) -> Tensor:
    """Uniform draws as a float tensor."""
    return torch.from_numpy(generator.uniform(low, high, shape).astype(np.float32))


def blend(strokes: Tensor, limits: Distortion, generator: np.random.Generator) -> Tensor:
    """A random stroke width: between the thin, the plain and the thick drawing."""
    amount = uniform(generator, -limits.stroke, limits.stroke, (len(strokes), 1, 1))
    thin, plain, thick = strokes.unbind(1)
    return torch.lerp(plain, torch.where(amount < 0, thin, thick), amount.abs())


def transform(drawing: Tensor, limits: Distortion, generator: np.random.Generator) -> Tensor:
    """Random affine map of (N, R, R), then the mean of each pixel's area: (N, 32, 32)."""
    n = len(drawing)
    angle = uniform(generator, -limits.rotation, limits.rotation, (n,)) * (math.pi / 180)
    shear = uniform(generator, -limits.shear, limits.shear, (n,))
    stretch = uniform(generator, 1 - limits.stretch, 1 + limits.stretch, (n,)).sqrt()
    zoom = uniform(generator, *limits.scale, (n,)).reciprocal()
    shift = uniform(generator, -limits.shift, limits.shift, (n, 2)) * (2 / SIDE)
    rows = (
        torch.stack([angle.cos() / stretch, shear - angle.sin(), shift[:, 0]], 1),
        torch.stack([angle.sin(), angle.cos() * stretch, shift[:, 1]], 1),
    )
    theta = torch.stack(rows, 1) * zoom[:, None, None]
    grid = F.affine_grid(theta, [n, 1, MASTER, MASTER], align_corners=False)
    moved = F.grid_sample(drawing.unsqueeze(1), grid, align_corners=False)
    return F.avg_pool2d(moved, MASTER // SIDE).squeeze(1)


def occlude(image: Tensor, limits: Distortion, generator: np.random.Generator) -> Tensor:
    """Cover a random rectangle of every image with a random grey."""
    centre = uniform(generator, 0, SIDE, (2, len(image), 1))
    half = uniform(generator, 0, limits.occlusion / 2, (2, len(image), 1))
    grey = uniform(generator, 0, 1, (len(image), 1, 1))
    inside = (torch.arange(SIDE) + 0.5 - centre).abs() < half
    return torch.where(inside[0].unsqueeze(2) & inside[1].unsqueeze(1), grey, image)


def render(split: str, label: int, count: int | None = None, limits: Distortion = EASY) -> np.ndarray:
    """The first `count` images (N, 32, 32) uint8 of one class in one split, by default `COUNTS` of them.

    They depend on nothing but the seed, split, label and limits: fewer are the beginning of more.
    """
    character, fonts, block = class_characters()[label], FONTS[split], COUNTS[split]
    count = block if count is None else count
    drawn = strokes(np.concatenate([draw([character], font) for font in fonts]))[torch.arange(block) % len(fonts)]
    parts = []
    for number in range(-(-count // block)):
        generator = np.random.default_rng([SEED, list(FONTS).index(split), label, *([number] if number else [])])
        parts.append(distort(drawn, limits, generator))
    return (torch.cat(parts)[:count] * 255).round().byte().numpy()


# --- on disk ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GlyphSet:
    """Which images a data set has."""

    classes: int = CLASSES
    images: int | None = None  # training images a class; None: the usual number
    hard: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= CLASSES:
            raise InputError(f"classes must be between 2 and {CLASSES}, got {self.classes}")
        if self.images is not None and not 1 <= self.images <= IMAGES:
            raise InputError(f"images a class must be between 1 and {IMAGES}, got {self.images}")

    @property
    def counts(self) -> dict[str, int]:
        """Split -> images a class."""
        usual = HARD_COUNTS if self.hard else COUNTS
        return usual | ({} if self.images is None else {"train": self.images})

    @property
    def keeps_images(self) -> bool:
        """Whether images are beside the features: of many a class they would take most of the disk."""
        return self.counts["train"] <= COUNTS["train"]

    @property
    def name(self) -> str:
        """For example `glyphs-200x25-hard`; the usual number of images is not in it."""
        images = "" if self.counts == GlyphSet(self.classes, hard=self.hard).counts else f"x{self.images}"
        return f"glyphs-{self.classes}{images}{'-hard' if self.hard else ''}"

    @property
    def twin(self) -> "GlyphSet":
        """As many classes and training images, hard for easy and easy for hard."""
        return GlyphSet(self.classes, self.counts["train"], not self.hard)

    def rows(self, split: str, first: int = 0) -> Iterator[np.ndarray]:
        """The images of a split from number `first` on, `BLOCK` after `BLOCK`: (N, 32, 32)."""
        count, limits = self.counts[split], HARD if self.hard else EASY
        waiting, drop = np.empty((0, SIDE, SIDE), np.uint8), first % count
        for label in range(first // count, self.classes):
            waiting = np.concatenate([waiting, render(split, label, count, limits)[drop:]])
            drop = 0
            while len(waiting) >= BLOCK:
                yield waiting[:BLOCK]
                waiting = waiting[BLOCK:]
        if len(waiting):
            yield waiting


def find_set(name: str) -> GlyphSet | None:
    """The set that is called glyphs-CLASSES, glyphs-CLASSESxIMAGES or either with -hard; None: it is another name."""
    match = NAME.fullmatch(name)
    if match is None:
        return None
    classes, images, hard = match.groups()
    return GlyphSet(1000 if classes == "1k" else int(classes), int(images) if images else None, bool(hard))


def prepare(
    classes: int,
    images: int | None = None,
    hard: bool = False,
    *,
    cache: Path | None = None,
    progress: Progress = silent,
) -> Path:
    """The folder with features, labels and names, and images unless they are many; made if it is not there.

    A process that was killed is continued by the next one that asks for the same set.
    """
    wanted = GlyphSet(classes, images, hard)
    weights = hashlib.sha256(glyph.WEIGHTS.read_bytes()).hexdigest()[:8]
    folder = (cache or cache_folder()) / f"{wanted.name}-v{FORMAT}-{weights}"
    if not folder.is_dir():
        files.continue_folder(folder, lambda partial: write_dataset(partial, wanted, progress))
    return folder


def write_dataset(folder: Path, wanted: GlyphSet, progress: Progress = silent) -> None:
    """Draw and encode every split into `folder`, or what is left of it."""
    network, counts, classes = glyph.load_network(), wanted.counts, wanted.classes
    arrays: dict[str, tuple[Any, tuple[int, ...]]] = {"x": (np.float16, (network.dimension,))}
    if wanted.keeps_images:
        arrays["images"] = (np.uint8, (SIDE, SIDE))
    bytes_each = sum(math.prod(shape) * np.dtype(kind).itemsize for kind, shape in arrays.values())
    files.require_room(folder, classes * sum(counts.values()) * bytes_each, f"the images of {wanted.name}")
    done: dict[str, int] = files.read_json(folder / DONE) if (folder / DONE).exists() else {}
    np.save(folder / "names.npy", np.array([class_name(character) for character in class_characters()[:classes]]))
    for split, count in counts.items():
        np.save(folder / f"y_{split}.npy", np.arange(classes, dtype=np.int64).repeat(count))
        first, total = done.get(split, 0), classes * count
        mapped = {
            name: open_memmap(folder / f"{name}_{split}.npy", "r+" if first else "w+", kind, (total, *shape))
            for name, (kind, shape) in arrays.items()
        }
        for images in wanted.rows(split, first):
            made = {"x": network.encode(images), "images": images}
            for name, array in mapped.items():
                array[first : first + len(images)] = made[name]
                array.flush()
            first += len(images)
            files.write_json(folder / DONE, done | {split: first})
            progress(f"draw and encode {split}", first, total)
        done[split] = first
    (folder / DONE).unlink()


# --- picture ------------------------------------------------------------------------------------------------------


def contact_sheet(path: Path, labels: Sequence[int] = range(12)) -> None:
    """A PNG with a row of images for each class: training on the left, then validation, then test."""
    blocks = {"training": ("train", 7), "validation": ("val", 4), "test": ("test", 6)}
    cell, left, top, gap = 2 * (SIDE + 2), 150, 44, 28
    width = left + sum(count * cell + gap for _, count in blocks.values())
    sheet = Image.new("L", (width, top + cell * len(labels) + gap // 2), 255)
    pen, letters = ImageDraw.Draw(sheet), ImageFont.truetype(str(font_file("Sans")), 20)
    for row, label in enumerate(labels):
        name = class_name(class_characters()[label])
        pen.text((left - 14, top + cell * (row + 0.5)), name, font=letters, anchor="rm")
    for heading, (split, count) in blocks.items():
        pictures = mosaic([render(split, label)[:count] for label in labels])
        sheet.paste(pictures.resize((cell * count, cell * len(labels)), Image.Resampling.NEAREST), (left, top))
        title = f"{heading}: {len(FONTS[split])} fonts"
        pen.text((left + cell * count / 2, top / 2), title, font=letters, anchor="mm")
        left += cell * count + gap
    sheet.quantize(12).save(path, optimize=True)


def mosaic(rows: list[np.ndarray]) -> Image.Image:
    """Rows of (N, 32, 32) images as one picture, dark on light."""
    framed = np.pad(np.stack(rows), ((0, 0), (0, 0), (1, 1), (1, 1)))
    return Image.fromarray(255 - np.concatenate([np.hstack(row) for row in framed]))
