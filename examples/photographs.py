"""Cut the photographs that scikit-learn has into pieces to try the commands with: python examples/photographs.py"""

from pathlib import Path

from PIL import Image
from sklearn.datasets import load_sample_image

SIDE, STEP = 160, 80

for name in ("china", "flower"):
    whole = load_sample_image(f"{name}.jpg")  # H,W,3
    height, width, _ = whole.shape
    for left in range(0, width - SIDE + 1, STEP):
        split = "train" if left + SIDE <= width * 2 // 3 else "test" if left >= width * 2 // 3 else None
        for top in range(0, height - SIDE + 1, STEP) if split else ():
            folder = Path("photographs") / str(split) / name
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(whole[top : top + SIDE, left : left + SIDE]).save(folder / f"{left:03}-{top:03}.png")
print("photographs/train: pieces of two thirds of each photograph, photographs/test: pieces of the rest")
