"""The table of counterparts, whole."""

from rljob_runtime.authoring.verl.rows_learning import ALGORITHM, DATA_AND_REWARD
from rljob_runtime.authoring.verl.rows_rollout import ROLLOUT
from rljob_runtime.authoring.verl.rows_running import ASYNCHRONY, MODEL_AND_TRAINER
from rljob_runtime.authoring.verl.table import Table

TABLE = Table((ASYNCHRONY, DATA_AND_REWARD, ALGORITHM, MODEL_AND_TRAINER, ROLLOUT))
