"""``python -m rqm`` is the ``rqm`` command."""

from rqm.cli import main

if __name__ == "__main__":
    main()
