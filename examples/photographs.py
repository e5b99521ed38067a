"""Cut the photographs that scikit-learn has into pieces to try the commands with: python examples/photographs.py"""

from pathlib import Path

from PIL import Image
from sklearn.datasets import load_sample_image

SIDE = 100

for name in ("china", "flower"):
    whole = load_sample_image(f"{name}.jpg")  # H,W,3
    corners = [(y, x) for y in range(0, len(whole) - SIDE, SIDE) for x in range(0, whole.shape[1] - SIDE, SIDE)]
    for number, (y, x) in enumerate(corners):
        folder = Path("photographs") / ("test" if number % 4 == 3 else "train") / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(whole[y : y + SIDE, x : x + SIDE]).save(folder / f"{number:02}.png")
print("photographs/train: 18 pieces of each photograph, photographs/test: 6 others")
