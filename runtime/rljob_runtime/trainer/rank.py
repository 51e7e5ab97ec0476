"""One rank of the trainer: owns the policy, trains steps, publishes weights, writes checkpoints.

Guarantees: every method is called on all ranks together, with the same arguments; rank 0 alone writes
weights. Nothing here knows Ray.
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from rljob_api import RLJob
from rljob_api.adapter import Adapter
from rljob_runtime.devices import Devices
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest.rotations import check_rotations
from rljob_runtime.objective.objective import Objective
from rljob_runtime.parallel.cost_model import CostModel
from rljob_runtime.parallel.rank_layout import RankLayout
from rljob_runtime.samples import Group
from rljob_runtime.site.own_start import OwnStart
from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trainer import checkpoint_tensors, compute_choice
from rljob_runtime.trainer.adapter import BaseModel, adapter_weights, add_adapter
from rljob_runtime.trainer.attention_choice import AttentionChoice, Heads, choose_attention
from rljob_runtime.trainer.compilation import Compilations
from rljob_runtime.trainer.context_parallel import share_samples
from rljob_runtime.trainer.finite_weights import check_finite
from rljob_runtime.trainer.group_scatter import broadcast_outlines
from rljob_runtime.trainer.host_copy import WeightsCopy
from rljob_runtime.trainer.host_tuning import bind_to_node, collection_paused
from rljob_runtime.trainer.lost_rank import RankLost, end_at_time_out, from_collectives
from rljob_runtime.trainer.model import load_policy
from rljob_runtime.trainer.optim import ScheduledAdamW
from rljob_runtime.trainer.outline import GroupsMissing
from rljob_runtime.trainer.pass_costs import PassCosts, shape_of
from rljob_runtime.trainer.phases import Phases
from rljob_runtime.trainer.policy import Policy
from rljob_runtime.trainer.rehearsal import rehearsed, rehearsed_degrees
from rljob_runtime.trainer.sampling_distribution import Distribution
from rljob_runtime.trainer.sharding import Sharding, shard, whole_weights
from rljob_runtime.trainer.step import StepRunner
from rljob_runtime.trainer.step_metrics import StepMetrics
from rljob_runtime.weights import adapter as adapter_files
from rljob_runtime.weights.contents import tensor_shapes
from rljob_runtime.weights.shm import WeightStore
from rljob_runtime.weights.write import write_weights

_LEAST_WAIT_SECONDS = 900.0
"""The ranks wait for one another so long at least: rank 0 may wait for the queue meanwhile."""

log = logging.getLogger(__name__)


class TrainerWorker:
    """See the module's guarantees. `setup` comes first."""

    def __init__(
        self,
        job: RLJob,
        model_folder: Path,
        rank: int,
        world_size: int,
        weights_root: Path,
        keep_versions: int,
        events: EventLog,
        total_updates: int | None,
        device_index: int = 0,
        search_path: Sequence[Path] = (),
        teacher_folder: Path | None = None,
        own_device: bool = False,
    ) -> None:
        """`model_folder` holds the initial weights; `weights_root` is where versions are published, of which
        the newest `keep_versions` stay; `device_index` counts among the devices that this process sees;
        `search_path`: folders in which functions of the job's own are looked for first; `teacher_folder`: of
        the teacher that this trainer scores, where the job has one; `own_device`: whether no engine takes the
        measure of its device while this rank starts."""
        self._job = job
        self._model_folder = model_folder
        self._rank = rank
        self._world_size = world_size
        self._layout = RankLayout(rank, world_size, job.spec.training.parallel.tensor_parallel)
        self._weights_root = weights_root
        self._keep_versions = keep_versions
        self._total_updates = total_updates
        self._device_index = device_index
        self._copy, self._version = WeightsCopy(), 0
        """The weights that were published last, on rank 0, and their version."""
        self._writing = threading.Lock()
        """Held while that copy is made, or written, which another thread does."""
        self._search_path = search_path
        self._teacher_folder = teacher_folder
        self._own_device = own_device
        self._devices = Devices.of(job.spec.accelerator)
        self._dtype: torch.dtype = getattr(torch, job.spec.training.model.dtype)
        self._events = events
        self._compilations = Compilations()
        mark = self._devices.mark if self._devices.torch_type != "cpu" else None
        self._phases = Phases(events, mark, self._compilations)
        stall = job.spec.training.timeouts.stall_seconds
        self._patience = timedelta(seconds=max(_LEAST_WAIT_SECONDS, stall))
        """How long ranks wait for one another."""
        self._store: WeightStore | None = None
        self._step = 0
        """The newest step, to which events between steps are charged."""

    def setup(self, store: Store, start: OwnStart | None = None) -> None:
        """Join the other ranks at `store` and load the model; `start` takes how long that took. Raises
        `UnsupportedModel`, `NoSuchLayers`, `DeviceMissing`, `FunctionLoadError`."""
        # First, as a large model takes long to load.
        self._objective = Objective.of(self._job.spec.training.algorithm, self._search_path)
        start = OwnStart() if start is None else start
        with start.part("join"):
            self._join(store)
        with start.part("load"):
            reference = self._load()
            teacher = self._load_teacher()
        trained = [each for each in self._policy.parameters() if each.requires_grad]
        with start.part("prepare"):
            self._optimizer = ScheduledAdamW(trained, self._job.spec.training.optimizer, self._total_updates)
            self._steps = self._runner(reference, teacher)
        if self._own_device and self._all_compile():
            with start.part("compile"):
                self._rehearse()
        self.shapes = tensor_shapes(self._model_folder)

    def _join(self, store: Store) -> None:
        """Take the device, and meet the other ranks."""
        training = self._job.spec.training
        self._device = self._devices.device(self._device_index)
        if training.compute.bind_cores:
            log.info("cores: %s", bind_to_node(self._devices.pci_address(self._device_index)))
        if self._device.type == "cpu":
            torch.set_num_threads(self._job.spec.pools.trainer.threads)
        self._devices.seed(training.seed + self._rank)
        end_at_time_out(os.environ)
        # gloo beside the accelerator's backend: for what is in main memory, such as sample data.
        backend = (
            "gloo" if self._device.type == "cpu" else f"cpu:gloo,{self._device.type}:{self._devices.backend}"
        )
        dist.init_process_group(
            backend,
            store=store,
            rank=self._rank,
            world_size=self._world_size,
            timeout=self._patience,
        )

    def _load(self) -> Policy | BaseModel | None:
        """Load the policy; the reference, where the algorithm has a KL penalty."""
        training = self._job.spec.training
        model = training.model
        load = partial(
            load_policy,
            self._model_folder,
            Distribution.of(training.rollout),
            experts=model.experts,
            # Other ranks get their parts of them when they are sharded.
            weights=self._rank == 0,
        )
        # Master weights in float32, for small updates would vanish in bfloat16; `shard` computes in the
        # model's format. Beside an adapter they are never updated.
        trained = torch.float32 if training.adapter is None else self._dtype
        policy = load(trained, model.recomputed, offload_activations=model.offload_activations)
        if training.adapter is not None:
            add_adapter(
                self._model_folder, policy.model, training.adapter, training.seed, weights=self._rank == 0
            )
        check_rotations(policy.model.config.get_text_config(), training.longest_sample_tokens)
        compiled = compute_choice.compiles(self._job, policy.model, compute_choice.compiler())
        log.info("layers are %s (%s)", "compiled" if compiled.on else "not compiled", compiled.why)
        policy.tune(self._logits, compiled.on, self._largest_degree > 1)
        self._compiled = compiled.on
        self._policy = self._spread(policy, self._model_folder)
        if training.algorithm.kl is None:
            return None
        if training.adapter is not None:
            return BaseModel(self._policy)
        # Never updated, so without master weights.
        reference = load(self._dtype).requires_grad_(False)
        reference.tune(self._logits, compiled.on, self._largest_degree > 1)
        return self._spread(reference, self._model_folder)

    def _load_teacher(self) -> Policy | None:
        """Load the teacher, where the trainer scores one. It is sharded as the policy is."""
        training, folder = self._job.spec.training, self._teacher_folder
        if training.algorithm.teacher_folder is None:
            return None
        if folder is None or not folder.is_dir():
            raise UnsupportedModel(
                f"algorithm.distillation.teacher.path: no folder {folder} where rank {self._rank} of the "
                "trainer runs: every machine of the trainer must see it"
            )
        # Of the temperature that the policy samples at: what is drawn from a restricted distribution may be
        # scored by a whole one, and a token that the teacher would have cut off is an unlikely one for it.
        whole = Distribution(training.rollout.drawn_at)
        experts = training.model.experts
        teacher = load_policy(folder, whole, self._dtype, experts=experts, weights=self._rank == 0)
        teacher.requires_grad_(False)
        check_rotations(teacher.model.config.get_text_config(), training.longest_sample_tokens)
        compiled = compute_choice.compiles(self._job, teacher.model, compute_choice.compiler())
        teacher.tune(self._logits, compiled.on, self._largest_degree > 1)
        log.info("the teacher is %s", folder)
        return self._spread(teacher, folder)

    def _spread(self, policy: Policy, folder: Path) -> Policy:
        """Each rank's part of a model that was read from `folder`, on the device."""
        found = shard(policy, self._device, self._dtype, self._sharding)
        check_finite(found.model, folder)
        return found

    @property
    def _logits(self) -> int:
        """How many are held at a time, in numbers."""
        return self._job.spec.training.compute.logits_mi_b * 2**20 // self._dtype.itemsize

    @property
    def _largest_degree(self) -> int:
        """Of ranks that share a sample: as many data ranks do."""
        return self._job.spec.context_parallel.largest_degree(self._layout.data_ranks)

    @property
    def _sharding(self) -> Sharding:
        parallel = self._job.spec.training.parallel
        return Sharding(parallel.shard_group_size, parallel.cpu_offload, self._layout.tensor)

    def _runner(self, reference: Policy | BaseModel | None, teacher: Policy | None) -> StepRunner:
        """What trains steps, with the attention and the plans that serve this job on this device."""
        spec, model = self._job.spec, self._policy.model
        largest = self._largest_degree
        heads = Heads.of(model)
        # The teacher's layers attend by the same layouts.
        taught = [Heads.of(teacher.model)] if teacher is not None else []
        attention = self._attention([heads, *taught], shared=largest > 1)
        log.info("attention: %s (%s)", attention.name, attention.why)
        size = compute_choice.size_of(self._policy, teacher, spec.training.adapter is not None)
        hold = compute_choice.holds_weights(self._job, size, self._devices.memory()[1])
        prior = CostModel.prior(shape_of(model, heads, self._layout.tensor), largest)
        costs = PassCosts(prior, largest, in_step=largest == 1 and not hold)
        sharing = share_samples(
            spec, self._layout, heads, attention, self._device, self._patience, costs, taught
        )
        return StepRunner(
            self._job,
            self._policy,
            reference,
            self._optimizer,
            self._device,
            self._phases,
            costs,
            attention.lay_out,
            sharing,
            hold,
            self._objective,
            teacher,
        )

    def _all_compile(self) -> bool:
        """Whether every rank compiles: each finds a compiler on its own machine, and none may wait in a pass
        that another one does not make."""
        compiled = torch.tensor([int(self._compiled)])
        dist.all_reduce(compiled, op=dist.ReduceOp.MIN)
        return bool(compiled)

    def _rehearse(self) -> None:
        """Have the policy's layers compiled, for every number of ranks that may share a pass."""
        training = self._job.spec.training
        trained = training.groups_per_step * training.rollout.samples_per_prompt
        own = max(1, trained // self._layout.data_ranks)
        cap = training.parallel.max_tokens_per_micro_batch
        sizes = {size for weight in self._policy.parameters() for size in weight.shape}
        for degree in rehearsed_degrees(self._job.spec.context_parallel, self._layout.data_ranks):
            shared = {size * degree for size in sizes}
            lengths = rehearsed(cap * degree, training.longest_sample_tokens, own * degree, sizes | shared)
            self._steps.rehearse(lengths, degree)
        self._devices.synchronize()
        # What is compiled here was to be.
        self._compilations.why()

    def _attention(self, models: Sequence[Heads], shared: bool) -> AttentionChoice:
        """The fastest attention that serves all of these models; `shared` as in `choose_attention`."""
        asked, tensor = self._job.spec.training.compute.attention, self._layout.tensor
        choices = [
            choose_attention(self._device, self._dtype, heads.part(tensor), asked, shared) for heads in models
        ]
        return next((each for each in choices if each.name == "rectangles"), choices[0])

    def train_step(self, step: int, version: int, groups: Sequence[Group] | None) -> StepMetrics:
        """Train on rank 0's `groups`, sorted by uid, of which other ranks get what they train; `version` is
        the one whose weights (or later) are trained.

        Raises `SampleTooLong`, `TrainingDiverged`, `OwnFunctionFailed`, and `RankLost` where another rank
        ended; on all ranks `PlansDiffer`, `RewardsUnfit`, and `GroupsMissing` where rank 0 gives None."""
        self._step = step
        try:
            return self._train_step(step, version, groups)
        except RuntimeError as error:
            if not from_collectives(error):
                raise
            raise RankLost(
                f"step {step_number(step)}: another rank of the trainer ended, or did not answer within "
                f"{self._patience.total_seconds():g} s: look for the first error in the ranks' logs"
            ) from error

    def _train_step(self, step: int, version: int, groups: Sequence[Group] | None) -> StepMetrics:
        began = self._events.clock()
        outlines = broadcast_outlines(groups)
        if outlines is None:
            raise GroupsMissing("rank 0 did not get the step's groups")
        if self._rank:
            # Rank 0 gets the groups from the queue meanwhile, and records how long that takes itself.
            waited = self._events.clock() - began
            self._events.add("get", step, began, waited, groups=len(outlines))
        with collection_paused(self._job.spec.training.compute.pause_garbage_collection):
            metrics = self._steps.run(step, version, outlines, groups or ())
        for why in self._compilations.why():
            log.info("step %d compiled %s", step_number(step), why)
        return metrics

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of the model's folder, by name in ascending order, whole, in the engines' number
        format, on the device. Run through it on all ranks."""
        return whole_weights(self._policy, self.shapes, self._dtype)

    def publish(self, version: int) -> None:
        """Make the weights as they are now `version`, on all ranks: rank 0 copies them to main memory, from
        which `write_version` writes them while the next step trains."""
        with self._phases.span("weight_publish", self._step, wait=True, version=version), self._writing:
            adapter = self._job.spec.training.adapter
            tensors = self.weights() if adapter is None else self._adapter_weights(adapter)
            # Every rank takes part in gathering each tensor, and rank 0 alone keeps it.
            for name, tensor in tensors:
                if self._rank == 0:
                    self._copy.take(name, tensor)
            # Before another thread may write what was copied.
            self._devices.synchronize()
            self._version = version

    def write_version(self) -> WeightRef:
        """Write what was published last where engines load it; where that is. On rank 0, from any thread.
        Raises `NoRoom`."""
        with self._writing, self._events.span("weight_write", self._step, version=self._version):
            adapter, whole = self._job.spec.training.adapter, self._copy.tensors

            def write(path: Path) -> None:
                if adapter is None:
                    write_weights(whole, path / "model.safetensors")
                else:
                    base = str(self._model_folder)
                    adapter_files.write(path, whole, adapter_files.config(self.shapes, adapter, base))

            if self._store is None:
                self._store = WeightStore(self._weights_root, self._keep_versions)
            return WeightRef(self._version, "shm", str(self._store.publish(self._version, write)))

    def _adapter_weights(self, adapter: Adapter) -> Iterator[tuple[str, Tensor]]:
        names = adapter_files.adapter_shapes(self.shapes, adapter)
        return adapter_weights(self._policy, names, self._dtype)

    def save_checkpoint(self, root: Path, step: int, extra: bytes) -> Path:
        """Write the checkpoint of `step` steps below `root`, with the driver's `extra`. Raises
        `CheckpointError`."""
        with self._phases.span("checkpoint", step, wait=True):
            training = self._job.spec.training
            return checkpoint_tensors.save(
                root,
                step,
                training.checkpoint.keep,
                self._policy.model,
                self._optimizer,
                self._devices,
                extra,
                adapter=training.adapter is not None,
            )

    def load_checkpoint(self, folder: Path) -> bytes:
        """Go on from a checkpoint; its `extra`. Raises `CheckpointError`."""
        adapter = self._job.spec.training.adapter is not None
        return checkpoint_tensors.load(folder, self._policy.model, self._optimizer, self._devices, adapter)

    def close(self) -> None:
        """Leave the other ranks, and remove what was published."""
        with self._writing:
            if self._store is not None:
                self._store.close()
        self._compilations.close()
        if dist.is_initialized():
            dist.destroy_process_group()
