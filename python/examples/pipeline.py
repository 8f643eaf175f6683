"""One process makes images, one finds their edges, this one looks at the result: arrays as they are."""

from multiprocessing import Process

import hamlyn
import numpy as np


def camera() -> None:
    with hamlyn.Manager() as manager, hamlyn.StreamSender.connect(manager, "images") as out:
        image = hamlyn.Loan(np.uint8, (480, 640))  # computed where it leaves from
        for i in range(20):
            image.array()[:] = np.arange(640) * i % 251
            out.send_array(image)


def find_edges() -> None:
    with hamlyn.Manager() as manager:
        images = hamlyn.StreamReceiver(manager)
        images.serve("images")
        with hamlyn.StreamSender.connect(manager, "edges") as out:
            for record in images:
                out.send_array(np.diff(record.array().astype(np.float32), axis=1))


if __name__ == "__main__":
    for stage in (camera, find_edges):
        Process(target=stage).start()
    with hamlyn.Manager() as manager:
        edges = hamlyn.StreamReceiver(manager)
        edges.serve("edges")
        for i, record in enumerate(edges):
            array = record.array()
            assert array.shape == (480, 639) and (array[0] == np.diff(np.arange(640.0) * i % 251)).all()
        print(f"{i + 1} arrays of {array.dtype} and shape {array.shape}; the last is from {record}")
