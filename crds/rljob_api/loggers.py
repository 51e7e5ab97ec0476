"""Where a job's metrics go beside its folder."""

from typing import Literal

from pydantic import Field

from rljob_api.base import Model, form


class WandbLogger(Model):
    """Weights & Biases. The key comes from the driver's environment (WANDB_API_KEY)."""

    project: str = Field(min_length=1, max_length=128)
    """The project, which is made where there is none."""
    entity: str | None = Field(default=None, min_length=1, max_length=128)
    """User or team. Not set: the key's own."""
    run_name: str | None = Field(default=None, min_length=1, max_length=128)
    """Name of the run. Not set: the job's."""
    mode: Literal["online", "offline"] = "online"
    """offline: into the run's folder alone, for `wandb sync`."""


class MlflowLogger(Model):
    """MLflow. Keys come from the driver's environment (MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD)."""

    tracking_uri: str | None = Field(default=None, min_length=1)
    """The tracking server, such as http://mlflow.tools:5000. Not set: MLFLOW_TRACKING_URI."""
    experiment: str = Field(min_length=1, max_length=128)
    """The experiment, which is made where there is none."""
    run_name: str | None = Field(default=None, min_length=1, max_length=128)
    """Name of the run. Not set: the job's."""


class WebhookLogger(Model):
    """An HTTP POST of JSON, for whatever has no logger here. A key comes from the driver's environment
    (RLJOB_WEBHOOK_TOKEN), and is sent as a bearer token."""

    url: str = Field(
        pattern=r"^https?://[^\s/@]+(/\S*)?$",
        max_length=2048,
        json_schema_extra=form(
            "an http or https address without a user, such as https://collect.tools/rljob"
        ),
    )
    """Where it is sent. It stands in the RLJob and is no place for a secret."""


class Loggers(Model):
    """Where metrics are sent beside metrics.jsonl and TensorBoard, under TensorBoard's names. One that fails
    is counted and logged, and holds up nothing."""

    wandb: WandbLogger | None = None
    """Weights & Biases; needs the package wandb (extra wandb)."""
    mlflow: MlflowLogger | None = None
    """MLflow; needs the package mlflow-skinny, or mlflow (extra mlflow)."""
    webhook: WebhookLogger | None = None
    """A plain HTTP POST."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=600)
    """How long an HTTP request of MLflow or of the webhook may take, and how long the end of the job waits
    for what is not sent yet."""
    buffer_steps: int = Field(default=1000, ge=1, le=100_000)
    """Steps that are kept for a logger that is away; of more the oldest are left out and counted."""
