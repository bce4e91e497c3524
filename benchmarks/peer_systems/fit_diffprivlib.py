"""Fits one model of diffprivlib; runs in an environment of its own, for `diffprivlib_models`.

python fit_diffprivlib.py logistic|bayes ROWS.npz AXES EPSILON SEED
"""

import json
import sys
import time
import warnings

import numpy as np
from diffprivlib.models import (  # pyright: ignore[reportMissingImports]
    GaussianNB,
    LogisticRegression,
)

_C = (0.01, 0.1, 1.0, 10.0)


def main() -> None:
    name, path, axes, epsilon, seed = sys.argv[1:]
    with np.load(path) as arrays:
        rows = {key: arrays[key] for key in arrays.files}
    train, test = (_unit(rows[key][:, : int(axes)]) for key in ("train", "test"))
    warnings.simplefilter("ignore")
    began = time.process_time()
    if name == "bayes":
        # Entries of a row of norm one; 2.5 of their deviations either way.
        reach = 2.5 / np.sqrt(train.shape[1])
        model = GaussianNB(
            epsilon=float(epsilon), bounds=(-reach, reach), random_state=int(seed)
        ).fit(np.clip(train, -reach, reach), rows["labels"])
        found = [(model.score(test, rows["answers"]), "")]
    else:
        found = []
        for c in _C:
            model = LogisticRegression(
                epsilon=float(epsilon), data_norm=1.0, C=c, max_iter=500, random_state=int(seed)
            ).fit(train, rows["labels"])
            found.append((model.score(test, rows["answers"]), f"C = {c:g}"))
    seconds = (time.process_time() - began) / len(found)
    accuracy, words = max(found)
    print(json.dumps({"accuracy": accuracy, "seconds": seconds, "words": words}))


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


if __name__ == "__main__":
    main()
