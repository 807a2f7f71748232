"""``python -m tools.leaks CURVES.json …`` adds what coordinates leak to curves saved where nobody could tell."""

import json
import sys
from pathlib import Path

from rqm._util.files import write_json
from rqm.config.coordinate_divergences import leak
from rqm.config.plan import Plan
from rqm.report.plots import plot_curves, save

if __name__ == "__main__":
    for _name in sys.argv[1:]:
        _path = Path(_name)
        _curves = json.loads(_path.read_text())
        for _entry in _curves.values():
            _entry["leak"] = leak(Plan.from_dict(_entry["plan"]))
        write_json(_path, _curves)
        print(save(plot_curves(_curves), _path.with_suffix(".png")))
