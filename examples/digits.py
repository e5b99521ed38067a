"""Write handwritten digits as images to try the commands with: python examples/digits.py"""

from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
for number, (image, label) in enumerate(zip(images.reshape(-1, 8, 8), labels, strict=True)):
    kind = "asked" if number % 90 == 0 else "test" if number % 9 == 4 else "first" if label < 5 else "later"
    folder = Path("digits") / kind
    if folder.name != "asked":
        folder /= str(label)
    folder.mkdir(parents=True, exist_ok=True)
    pixels = (image * 255 / 16).round().astype("uint8")
    Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC).save(folder / f"{number:04}-is-{label}.png")
print("digits/first: 0 to 4, digits/later: 5 to 9, digits/test: others of all, digits/asked: a few of all")
