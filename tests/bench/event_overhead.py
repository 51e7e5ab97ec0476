"""What recording events costs: per event, and as a share of a step.

The step is the work of one step of `examples/copy.yaml` in plain torch on one CPU thread: 32 prompts of 8
responses are generated token by token and trained in micro-batches, by a model of that size, and every event
that a job records in such a step is recorded, by its driver, its engines and its trainer, here all in one
process. A job's engines and loops take longer for the same step, so that the share is an upper bound.

Steps with and without events alternate in pairs, in an order drawn by a seed, and are measured in processor
time, which other processes on the machine do not change; the share is the median difference of the pairs
over the median step, beside its standard error (of a median, from the median absolute deviation).

    OMP_NUM_THREADS=1 python -m tests.bench.event_overhead
"""

import random
import statistics
import tempfile
import time
from pathlib import Path

import torch

from rljob_runtime.site.process_use import FIRST_SECONDS, ProcessUse
from rljob_runtime.trace.record.event_log import EventLog
from tests.bench.figures import Figure, parser, record

PAIRS = 100
MICRO_BATCHES = 4
GROUPS = 32
SAMPLES = 8
PROMPT_TOKENS = 8
RESPONSE_TOKENS = 8
WORKERS = 4
"""Driver, trainer and two engines: each is sampled once in the step, which is oftener than it is."""
USE = {
    "cpu": 1.234, "memory_mib": 1234, "running": 64.0, "waiting": 0.0, "kv_use": 0.1234,
    "prefix_asked": 1234.0, "prefix_hits": 123.0, "preemptions": 0.0,
}  # fmt: skip
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


def generate(model: Model, prompts: torch.Tensor, events: EventLog, step: int) -> torch.Tensor:
    """The responses to one step's prompts, and the events of driver and engines for them."""
    for group in range(GROUPS):
        with events.span("prompt_fetch", step, uid=step * GROUPS + group):
            pass
    began, tokens = time.time(), prompts
    with torch.no_grad():
        for _ in range(RESPONSE_TOKENS):
            tokens = torch.cat([tokens, model(tokens)[:, -1].softmax(-1).multinomial(1)], dim=1)
    seconds = time.time() - began
    for group in range(GROUPS):
        uid = step * GROUPS + group
        for index in range(SAMPLES):
            events.add(
                "generate", step, began, seconds,
                uid=uid, request=f"{uid}.{index}#{uid}",
                tokens=RESPONSE_TOKENS, length=RESPONSE_TOKENS, finish="stop", for_long=True,
                versions=[step, step],
                phases={"queued": 0.001234, "prefill": 0.002345, "decode": 0.345678, "paused": 0.012345},
            )  # fmt: skip
        with events.span("reward", step, uid=uid) as extra:
            extra["rewards"] = [1.0] * SAMPLES
            extra |= {"waiting": 0.001234, "running": 0.000123, "spread": 0.123456}
            extra |= {"waited": [0.001234] * SAMPLES, "ran": [0.000123] * SAMPLES}
        for event in ("group_assembly", "put"):
            with events.span(event, step, uid=uid):
                pass
        events.add("queue_wait", step, began, seconds, uid=uid)
    events.add("division", step, began, seconds, engines=1, cut=64)
    for _ in range(WORKERS):
        events.add("usage", step, began, seconds, **USE)
    for event in ("admission_wait", "idle", "weight_publish", "weight_pause", "weight_load", "weight_resume"):
        events.add(event, step, began, seconds)
    return tokens


def train(
    model: Model, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, events: EventLog, step: int
) -> None:
    """One update, and what a trainer records of it."""
    for event in ("share", "reduce"):
        with events.span(event, step):
            pass
    with events.span("get", step):
        batches = tokens.chunk(MICRO_BATCHES)
    for batch in batches:
        with events.span("forward", step, tokens=batch.numel()):
            logits = model(batch)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.flatten())
        with events.span("backward", step):
            torch.autograd.backward([loss])
    with events.span("optimizer", step):
        optimizer.step()
        optimizer.zero_grad()


EVENTS_OF_A_STEP = GROUPS * (5 + SAMPLES) + 7 + 4 + WORKERS + 2 * MICRO_BATCHES


def cost_of_a_sample(count: int = 200) -> float:
    """Milliseconds of processor time of one look at what this process and its children use."""
    use = ProcessUse()
    began = time.process_time()
    for _ in range(count):
        use.take()
    return (time.process_time() - began) / count * 1e3


def cost_per_event(folder: Path, count: int = 20_000) -> tuple[float, float]:
    """Microseconds of one `add` and one `span`, writing included."""
    log = EventLog(folder, 9, "fast-0", "fast")
    began = time.perf_counter()
    for index in range(count):
        log.add(
            "generate", index // 1000, 1.8e9, 0.5, uid=7, request="7.1#9", tokens=9, length=9, finish="stop"
        )
    log.flush()
    added = time.perf_counter()
    for index in range(count):
        with log.span("forward", index // 1000, tokens=512):
            pass
    log.flush()
    ended = time.perf_counter()
    return (added - began) / count * 1e6, (ended - added) / count * 1e6


def overhead(folder: Path) -> tuple[list[float], list[float]]:
    """Processor seconds of the steps without events, and what each pair's step with events took more."""
    torch.manual_seed(0)
    model, rng = Model(), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters())
    prompts = torch.randint(0, VOCABULARY, (GROUPS * SAMPLES, PROMPT_TOKENS))
    on, off = EventLog(folder, 0, "trainer-0", "trainer"), EventLog(None, 0, "trainer-0", "trainer")

    def seconds(events: EventLog, step: int) -> float:
        began = time.process_time()
        train(model, optimizer, generate(model, prompts, events, step), events, step)
        return time.process_time() - began

    differences, without = [], []
    for step in range(-3, PAIRS):
        order = [on, off] if rng.random() < 0.5 else [off, on]
        took = {id(events): seconds(events, step + 3) for events in order}
        if step >= 0:
            differences.append(took[id(on)] - took[id(off)])
            without.append(took[id(off)])
    return without, differences


def main() -> None:
    """Measure and record."""
    out = parser(__doc__).parse_args().out
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        without, differences = overhead(Path(folder))
        add, span = cost_per_event(Path(folder))
    sample = cost_of_a_sample()
    step, more = statistics.median(without), statistics.median(differences)
    deviation = 1.4826 * statistics.median(abs(value - more) for value in differences)
    spread = 1.2533 * deviation / PAIRS**0.5
    record(
        "event_overhead",
        [
            Figure("one event, timed elsewhere", add, "µs"),
            Figure("one event, timed as a span", span, "µs"),
            Figure("events of a step", EVENTS_OF_A_STEP, "events"),
            Figure(
                "events of a step, each at the cost of one",
                EVENTS_OF_A_STEP * max(add, span) / 1e6 / step * 100,
                "% of the step",
                goal="< 1 %",
            ),
            Figure("step with events", (step + more) * 1e3, "ms of processor time", baseline=step * 1e3),
            Figure("overhead of events", more / step * 100, "% of the step", goal="< 1 %"),
            Figure("standard error of the overhead", spread / step * 100, "% of the step"),
            Figure("one sample of what a process uses", sample, "ms of processor time"),
            Figure(
                "samples, one every 5 s", sample / 1e3 / FIRST_SECONDS * 100, "% of a processor", goal="< 1 %"
            ),
        ],
        out,
    )


if __name__ == "__main__":
    main()
