"""`python alternating.py MEGABYTES BATCHES STRETCH`: as sized.py, under detrain, without records in every other stretch of batches.

What differs between two processes, as where their memory lies, differs by more than the ledger costs; within one process it does not.
Prints when each batch began, in seconds of the monotonic clock, and how many pages of memory had been mapped by then.
"""

import json
import resource
import sys
import time

import sized
import torch

from detrain.session.recorder import Recorder

STRETCH = int(sys.argv[3])


def take_turns():
    """Leave out the records of every odd stretch, and its time from what the ledger reckons by."""
    at_header, next_at_header = Recorder.at_header, Recorder.next_at_header
    off_since = []

    def turns(batches):
        return (batches // STRETCH + 1) * STRETCH

    def next_to(self, batches):
        if batches // STRETCH % 2:
            return turns(batches), float("inf")
        next_batch, next_s = next_at_header(self, batches)
        return min(next_batch, turns(batches)), next_s

    def at(self, at, loop, now_s, *, must=False):
        is_off = at.batches // STRETCH % 2 and not must
        if is_off:
            off_since[:] = off_since or [now_s]
            self._losses.end_batch(at.batches, counts=True)
            return
        if off_since:
            self._began_s += now_s - off_since.pop()
        at_header(self, at, loop, now_s, must=must)

    Recorder.next_at_header, Recorder.at_header = next_to, at


def main():
    step = sized.prepare(float(sys.argv[1]) * 1e6)
    take_turns()
    began = torch.zeros(int(sys.argv[2]), 2, dtype=torch.float64)
    for number in range(len(began)):
        began[number, 0] = time.monotonic()
        began[number, 1] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
    print(json.dumps(began.tolist()), flush=True)


main()
