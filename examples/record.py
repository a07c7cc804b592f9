"""Record the examples anew with a real model: `make record`.

    KOKUBAN_MODEL=openai-compatible:NAME KOKUBAN_BASE_URL=http://127.0.0.1:8089/v1 python examples/record.py [EXAMPLE …]

Each example is run for real, with every reply of the model kept. Only a run that ends with a checked deliverable
replaces the old recording; nothing in it is edited by hand.
"""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def main(names: list[str]) -> int:
    if not os.environ.get("KOKUBAN_MODEL"):
        print("Set KOKUBAN_MODEL (and KOKUBAN_BASE_URL) to the real model to record.", file=sys.stderr)
        return 2
    examples = [HERE / name for name in names] or sorted(path.parent for path in HERE.glob("*/example.toml"))
    failed = [example.name for example in examples if not record(example)]
    if failed:
        print(f"not recorded, the old recording stands: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def record(example: Path) -> bool:
    """Run one example with the real model; keep its replies when it ends done."""
    about = tomllib.loads((example / "example.toml").read_text())
    limits = [f"--{name.replace('_', '-')}={value}" for name, value in about.get("limits", {}).items()]
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "recording"
        command = [
            sys.executable, "-m", "kokuban.console.main", "run", (example / about["goal"]).read_text().strip(),
            "--workspace", str(example / about["workspace"]), "--record", str(fresh), *limits,
            *(f"--source={example / source}" for source in about["sources"]),
            *(f"--check={check}" for check in about["checks"]),
        ]  # fmt: skip
        print(f"recording {example.name} …", flush=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # as the demo does
        if subprocess.run(command, env=os.environ | {"PATH": path}).returncode != 0:
            return False
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        (fresh / "ABOUT.toml").write_text(
            f'model = "{os.environ["KOKUBAN_MODEL"]}"\nrecorded = "{today}"\nwith = "make record"\n'
        )
        shutil.rmtree(example / "recording", ignore_errors=True)
        shutil.copytree(fresh, example / "recording")
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
