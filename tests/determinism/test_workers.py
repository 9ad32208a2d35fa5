"""Which generators of a data set are seeded for each batch that a worker loads."""

import random

import torch
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from detrain.adapters.torch import workers


def generators_below(dataset):
    return [one for one in workers._below([dataset]) if isinstance(one, workers._GENERATORS)]


class Noisy:
    def __init__(self):
        self.own, self.torchs, self.plain = random.Random(1), torch.Generator(), 3


def test_those_that_a_data_set_holds_itself():
    noisy = Noisy()
    assert generators_below(noisy) == [noisy.own, noisy.torchs]


class Held(IterDataPipe):
    def __init__(self, source, noisy):
        self.source, self.noisy = source, noisy


def test_not_the_one_that_a_shuffling_pipe_shares_with_those_of_the_other_workers():
    noisy = Noisy()
    pipe = Held(IterableWrapper(range(9)).shuffle(buffer_size=3).sharding_filter(), noisy)
    assert generators_below(pipe) == [noisy.own, noisy.torchs]
