"""The log of a run: everything that the driver's process logs, in the run's folder.

Guarantees: the file and the one before it are bounded, as a run may take months; a disk that is full ends
nothing.
"""

import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path

from rljob_runtime.run_folder import LOG

LOG_BYTES = 16 << 20
"""Most bytes of the log, and of the one before it."""


class RunLog:
    """Takes what is logged from now on; other handlers that there are take nothing more."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the run's."""
        self._file = folder / LOG
        self._handler = self._opened()
        logging.basicConfig(level=logging.INFO, handlers=[self._handler], force=True)
        # On a full disk the log is cut off; it does not tell the terminal of each line that did not fit.
        logging.raiseExceptions = False
        # The tokenizers library would warn on the terminal of each process that is started after its first
        # use.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def follow(self) -> None:
        """Go on in the folder that has the name now: the one before was moved aside, with its log."""
        before, self._handler = self._handler, self._opened()
        root = logging.getLogger()
        root.addHandler(self._handler)
        root.removeHandler(before)
        before.close()

    def _opened(self) -> logging.Handler:
        handler = RotatingFileHandler(self._file, maxBytes=LOG_BYTES, backupCount=1)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        return handler
