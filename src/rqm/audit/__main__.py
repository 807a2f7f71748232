"""The audits that need only torch, NumPy and SciPy, as commands: see `rqm.audit.suite`."""

import sys

from rqm.audit.suite import main

if __name__ == "__main__":
    sys.exit(main())
