"""Batches of event sequences from a folder of files."""

import json
import pathlib
import random

import numpy as np

NUM_EVENTS = 288
PAD = NUM_EVENTS


class Data:
    """Files of events; one in five is kept for evaluation."""

    def __init__(self, folder):
        self.files = sorted(pathlib.Path(folder).glob("*.json"))
        if not self.files:
            raise FileNotFoundError(f"no *.json in {folder}; make some with encode.py")
        self.splits = {"train": [f for i, f in enumerate(self.files) if i % 5], "eval": self.files[::5]}

    def __len__(self):
        return len(self.splits["train"])

    def batch(self, size, length, split="train"):
        """`size` pieces of `length` events from random files, and the same one event later. Raises IndexError for a tune that is too short."""
        rows = [self._piece(path, length + 1) for path in random.sample(self.splits[split], size)]
        rows = np.array(rows, dtype=np.int32)
        return rows[:, :-1], rows[:, 1:]

    def _piece(self, path, length):
        with open(path) as file:
            events = json.load(file)
        if len(events) < length:
            raise IndexError(f"{path.name} has {len(events)} events, {length} are wanted")
        start = random.randrange(len(events) - length + 1)
        return events[start : start + length]
