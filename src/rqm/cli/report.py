"""`rqm report`: a run as a page."""

from pathlib import Path

from rqm.cli.formatting import Result
from rqm.cli.progress import progress


def command(
    run_dir: list[Path],
    data: Path | None = None,
    out: Path | None = None,
) -> Result:
    """Write one self-contained HTML file about a run: learning, privacy, bits, time, the model, and how to repeat it.

    Several runs, or the folder of a sweep, are compared. `rqm train` writes a report at its end.

    Examples:

        rqm report runs/first

        rqm report runs/first runs/second --out compared.html

    Args:
        run_dir: Folders of runs, or of a sweep; several are compared.
        data: The folder of the data; default $RQM_DATA, else the user's cache.
        out: The file; default report.html in the first folder.
    """
    path = write(run_dir, out, data)
    return Result({"report": str(path)}, lines=[str(path)])


def write(folders: list[Path], out: Path | None = None, data: Path | None = None) -> Path:
    """Build and save a report.

    Args:
        folders: Folders of runs or of sweeps.
        out: The file; None: `report.html` in the first folder.
        data: The folder of the data; default $RQM_DATA, else the user's cache.

    Returns:
        The file.
    """
    from rqm._util.files import write_atomically
    from rqm.report.page import build_page

    with progress("writing the report"):
        text = build_page(folders, data)
    path = out or folders[0] / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    return path
