"""``python -m rqm.federated``: the old name of ``python -m rqm.training``."""

import sys

from rqm.training.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
