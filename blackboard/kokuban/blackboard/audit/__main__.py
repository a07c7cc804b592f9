"""`python -I …/audit FILE`: the checker by itself, without Kokuban being importable."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry) != here]  # ours shadow nothing
    spec = importlib.util.spec_from_file_location(
        "history_audit", here / "__init__.py", submodule_search_locations=[str(here)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["history_audit"] = module
    spec.loader.exec_module(module)
    sys.exit(module.main())
