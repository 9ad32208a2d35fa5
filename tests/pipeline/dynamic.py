"""Pipelines done event by event, each worker deciding anew what is next: what the simulator is compared with.

It shares no code with it: neither lists of work nor graphs of tasks, only the rules as sentences. All-reduces of an asynchronous
schedule have no uplinks in common here.
"""

import heapq
from collections import defaultdict

FORWARD, BACKWARD, WEIGHT, SEND, SEND_BACK, ALL_REDUCE = range(6)


class Pipeline:
    """Loads as of the simulator; `times` gets start and end by kind, stage, micro-batch."""

    def __init__(self, schedule, loads, num_mini_batches=1):
        self.schedule, self.loads, self.name = schedule, loads, schedule.name
        self.is_asynchronous = self.name in ("1f1b-async", "2bw")
        self.num_stages, self.size = len(loads), schedule.num_micro_batches
        self.total = num_mini_batches * self.size
        self.num_devices = self.num_stages // schedule.chunks
        self.replicas = [load.replicas if self.is_asynchronous else 1 for load in loads]
        self.times, self.done, self.clock, self.events, self.count = {}, set(), 0.0, [], 0
        self.counts = defaultdict(lambda: [0, 0, 0])  # by worker: forwards, backwards and W begun
        self.busy = set()  # workers, links, all-reduces of a stage
        self.queues = defaultdict(list)  # by link
        self.sent = defaultdict(int)  # by link of an asynchronous schedule
        self.updates = [0] * self.num_stages
        self.begun = defaultdict(list)  # by stage and round: ends of its backwards
        self.due = defaultdict(set)  # by stage: rounds whose all-reduce may begin
        self.workers = [
            (stage, replica) for stage in range(self.num_devices) for replica in range(self.replicas[stage])
        ]

    def run(self):
        self.poke()
        while self.events:
            self.clock = self.events[0][0]
            while self.events and self.events[0][0] == self.clock:
                heapq.heappop(self.events)[2]()
            self.poke()
        if not self.is_asynchronous:
            self.reduce_at_the_end()
        return self.times

    def after(self, seconds, action):
        self.count += 1
        heapq.heappush(self.events, (self.clock + seconds, self.count, action))

    def poke(self):
        has_begun = True
        while (
            has_begun
        ):  # what takes no time makes way at once for what follows, so an event may be at the present clock
            has_begun = False
            for worker in self.workers:
                if worker not in self.busy:
                    work = self.next_of(worker)
                    if work is not None and self.is_ready(*work):
                        self.begin(worker, *work)
                        has_begun = True
            for link in list(self.queues):
                has_begun |= self.send(link)
            for stage in list(self.due):
                has_begun |= self.reduce(stage)

    # --- what is next ----------------------------------------------------------------------------------------------------------

    def next_of(self, worker):
        stage, replica = worker
        forwards, backwards, weights = self.counts[worker]
        total = len(range(replica, self.total, self.replicas[stage])) * self.schedule.chunks
        if self.name == "zb-h1" and (backwards - weights > stage or (backwards == total and weights < total)):
            return WEIGHT, stage, weights
        if forwards < total and forwards - backwards < self.limit(stage):
            return FORWARD, *self.turn(worker, forwards, is_back=False)
        if backwards < total:
            return BACKWARD, *self.turn(worker, backwards, is_back=True)
        return None

    def limit(self, stage):
        behind = self.num_stages - stage
        if self.name == "gpipe":
            return self.total
        if self.name == "interleaved":
            return 2 * (self.num_devices - stage - 1) + (self.schedule.chunks - 1) * self.num_devices + 1
        if self.is_asynchronous:
            earlier = sum(self.replicas[:stage])
            return (sum(self.replicas) - 1 - earlier) // self.replicas[stage] + 1
        return 2 * behind - 1 if self.schedule.warmup == "pb" else behind

    def turn(self, worker, number, *, is_back):
        stage, replica = worker
        if self.name == "interleaved":
            group, within = divmod(number, self.num_devices * self.schedule.chunks)
            chunk, position = divmod(within, self.num_devices)
            chunk = self.schedule.chunks - 1 - chunk if is_back else chunk
            return chunk * self.num_devices + stage, group * self.num_devices + position
        if self.name == "gpipe" and is_back:
            return stage, self.total - 1 - number
        return stage, replica + number * self.replicas[stage]

    def is_ready(self, kind, stage, batch):
        if kind == WEIGHT:
            return (BACKWARD, stage, batch) in self.done
        if kind == BACKWARD:
            if stage == self.num_stages - 1:
                return (FORWARD, stage, batch) in self.done
            return (SEND_BACK, stage + 1, batch) in self.done
        if stage and (SEND, stage - 1, batch) not in self.done:
            return False
        return (
            not self.is_asynchronous or self.replicas[stage] == 1 or self.updates[stage] >= self.awaited(stage, batch)
        )

    def stashed(self, stage, batch):
        """Updates, in rounds, that a forward of PipeDream comes after."""
        late = self.limit(stage) - 1 + (self.schedule.update_delay if self.replicas[stage] > 1 else 0)
        return max(0, batch // self.replicas[stage] - late)

    def awaited(self, stage, batch):
        if self.name == "2bw":
            return max(0, batch // self.size - 1)
        if self.schedule.vertical_sync:
            first = self.stashed(0, batch) * self.replicas[0] // self.replicas[stage]
            return max(first, self.stashed(stage, batch))
        return self.stashed(stage, batch)

    # --- doing it --------------------------------------------------------------------------------------------------------------

    def begin(self, worker, kind, stage, batch):
        load = self.loads[stage]
        weight_s = load.weight_s if self.name == "zb-h1" else 0.0
        seconds = (load.forward_s, load.backward_s - weight_s, weight_s)[kind]
        self.counts[worker][kind] += 1
        self.busy.add(worker)
        self.times[kind, stage, batch] = self.clock, self.clock + seconds
        self.after(seconds, lambda: self.end(worker, kind, stage, batch))
        if kind == BACKWARD and self.is_asynchronous and self.replicas[stage] > 1:
            self.note_backward(stage, batch, self.clock + seconds)

    def end(self, worker, kind, stage, batch):
        self.busy.discard(worker)
        self.done.add((kind, stage, batch))
        if kind == FORWARD and stage < self.num_stages - 1:
            self.queues[self.link(SEND, stage, batch)].append((stage, batch))
        if kind == BACKWARD and stage:
            self.queues[self.link(SEND_BACK, stage, batch)].append((stage, batch))

    def link(self, kind, stage, batch):
        if not self.is_asynchronous:
            return kind, stage % self.num_devices, 0, 1
        fewer = min(self.replicas[stage], self.replicas[stage + (1 if kind == SEND else -1)])
        return kind, stage, batch % fewer, fewer

    def send(self, link):
        kind, _, lane, step = link
        queue = self.queues[link]
        if link in self.busy or not queue:
            return False
        if self.is_asynchronous:
            queue.sort(key=lambda one: one[1])
            if queue[0][1] != lane + self.sent[link] * step:
                return False
        stage, batch = queue.pop(0)
        seconds = self.loads[stage].send_s if kind == SEND else self.loads[stage].send_back_s
        self.busy.add(link)
        self.sent[link] += 1
        self.times[kind, stage, batch] = self.clock, self.clock + seconds

        def arrive():
            self.busy.discard(link)
            self.done.add((kind, stage, batch))

        self.after(seconds, arrive)
        return True

    # --- all-reduces -----------------------------------------------------------------------------------------------------------

    def note_backward(self, stage, batch, end_s):
        size = self.size if self.name == "2bw" else self.replicas[stage]
        number = batch // size
        ends = self.begun[stage, number]
        ends.append(end_s)
        if len(ends) == len(range(number * size, min(self.total, (number + 1) * size))):
            lead = self.loads[stage].all_reduce_lead_s
            self.after(max(ends) - lead - self.clock, lambda: self.due[stage].add(number))

    def reduce(self, stage):
        number = self.updates[stage]
        if number not in self.due[stage] or ("all-reduce", stage) in self.busy:
            return False
        seconds = self.loads[stage].all_reduce_s
        self.busy.add(("all-reduce", stage))
        self.due[stage].discard(number)
        self.times[ALL_REDUCE, stage, number] = self.clock, self.clock + seconds

        def update():
            self.busy.discard(("all-reduce", stage))
            self.updates[stage] += 1

        self.after(seconds, update)
        return True

    def reduce_at_the_end(self):
        """From the last stage to the first: those over the same uplinks, or of the same device, wait for each other."""
        last_kind = WEIGHT if self.name == "zb-h1" else BACKWARD
        for stage in reversed(range(self.num_stages)):
            load = self.loads[stage]
            last = max(end for (kind, at, _), (_, end) in self.times.items() if (kind, at) == (last_kind, stage))
            start = max(0.0, last - load.all_reduce_lead_s)
            for later in range(stage + 1, self.num_stages):
                has_device = (later - stage) % self.num_devices == 0
                if has_device or set(load.fabrics) & set(self.loads[later].fabrics):
                    start = max(start, self.times[ALL_REDUCE, later, 0][1])
            self.times[ALL_REDUCE, stage, 0] = start, start + load.all_reduce_s
