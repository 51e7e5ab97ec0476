"""The trainer: one process per accelerator, FSDP2, GRPO."""
