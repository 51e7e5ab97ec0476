"""What Ray starts for each of its workers instead of its own setup_worker.py: asks for one that is forked,
and ends when that one does. A script, for a new Python that imports next to nothing."""

import os
import sys

sys.path[0] = os.path.dirname(os.path.abspath(__file__))
import forking  # noqa: E402

worker = forking.Asked("worker", sys.argv[1:])
connection, _ = forking.ask(os.environ[forking.ADDRESS], worker, dict(os.environ), os.getcwd(), [0, 1, 2])
code = forking.exit_code(connection, None)
sys.exit(code if code is None or code >= 0 else 128 - code)
