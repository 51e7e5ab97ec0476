"""What recording events costs: per event, and as a share of the time of a training step.

The step is real work of torch on the CPU, forward and backward of a small language model in micro-batches and an
optimizer update, with as many events as a job records in one such step: those of its trainer, and of the driver
for its groups and responses, of which none runs on the trainer's critical path in a job. Steps with and without
events alternate in pairs, their order drawn by a seed; the share is the mean difference of the pairs over the
mean step, beside its standard error.

    OMP_NUM_THREADS=1 python -m tests.bench.event_overhead
"""

import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from tests.bench.figures import Figure, record

from rljob_runtime.trace.events import EventLog

PAIRS = 120
MICRO_BATCHES = 4
GROUPS = 32
SAMPLES = 8
TOKENS_PER_MICRO_BATCH = 1024
HIDDEN = 64
VOCABULARY = 512


class Model(torch.nn.Module):
    """Two transformer layers: the size of the model of `examples/copy.yaml`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, HIDDEN)
        layer = torch.nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2)
        self.head = torch.nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.layers(self.embed(tokens)))
        return output


def train_step(
    model: Model, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, events: EventLog, step: int
) -> None:
    """One step; records what a trainer records."""
    with events.span("get", step):
        batches = tokens.chunk(MICRO_BATCHES)
    for batch in batches:
        with events.span("forward", step, tokens=batch.numel()):
            logits = model(batch)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.flatten())
        with events.span("backward", step):
            loss.backward()
    with events.span("optimizer", step):
        optimizer.step()
        optimizer.zero_grad()


def record_groups(events: EventLog, step: int) -> None:
    """What the driver records for one step's groups."""
    now = time.time()
    for group in range(GROUPS):
        uid = step * GROUPS + group
        for event in ("prompt_fetch", "reward", "group_assembly", "put", "queue_wait"):
            events.add(event, step, now, 0.001, uid=uid)
        for index in range(SAMPLES):
            events.add(
                "generate", step, now, 0.5,
                uid=uid, request=f"{uid}.{index}.0", tokens=9, length=9, finish="stop",
            )  # fmt: skip
    events.flush()


def cost_per_event(folder: Path, count: int = 20_000) -> tuple[float, float]:
    """Microseconds of one `add` and one `span`, writing included."""
    log = EventLog(folder, 9, "fast-0", "fast")
    began = time.perf_counter()
    for index in range(count):
        log.add(
            "generate", index // 1000, 1.8e9, 0.5, uid=7, request="7.1.0", tokens=9, length=9, finish="stop"
        )
    log.flush()
    added = time.perf_counter()
    for index in range(count):
        with log.span("forward", index // 1000, tokens=512):
            pass
    log.flush()
    ended = time.perf_counter()
    return (added - began) / count * 1e6, (ended - added) / count * 1e6


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, VOCABULARY, (MICRO_BATCHES * TOKENS_PER_MICRO_BATCH // 16, 16))
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        on = EventLog(folder, 0, "trainer-0", "trainer"), EventLog(folder, 1, "driver", "driver")
        off = EventLog(None, 0, "trainer-0", "trainer"), EventLog(None, 1, "driver", "driver")

        def seconds(logs: tuple[EventLog, EventLog], step: int) -> float:
            began = time.perf_counter()
            train_step(model, optimizer, tokens, logs[0], step)
            record_groups(logs[1], step)
            logs[0].flush()
            return time.perf_counter() - began

        for step in range(5):
            seconds(on, step), seconds(off, step)
        differences, without = [], []
        for pair in range(PAIRS):
            step = 5 + pair
            if rng.random() < 0.5:
                recorded, plain = seconds(on, step), seconds(off, step)
            else:
                plain, recorded = seconds(off, step), seconds(on, step)
            differences.append(recorded - plain)
            without.append(plain)
        add, span = cost_per_event(folder)
    mean = statistics.mean(without)
    events = 2 + 2 * MICRO_BATCHES + GROUPS * (5 + SAMPLES)
    spread = statistics.stdev(differences) / PAIRS**0.5
    record(
        "event_overhead",
        [
            Figure("one event, timed elsewhere", add, "µs"),
            Figure("one event, timed as a span", span, "µs"),
            Figure("events of a step", events, "events"),
            Figure("step without events", mean * 1e3, "ms"),
            Figure(
                "step with events", (mean + statistics.mean(differences)) * 1e3, "ms", baseline=mean * 1e3
            ),
            Figure("overhead of events", statistics.mean(differences) / mean * 100, "%", goal="< 1 %"),
            Figure("standard error of the overhead", spread / mean * 100, "%"),
        ],
    )


if __name__ == "__main__":
    main()
