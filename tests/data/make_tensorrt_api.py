"""Lists what each TensorRT's Python bindings really offer, from their wheels alone: no GPU, no TensorRT libraries.

    python3.10 make_tensorrt_api.py WHEEL ... > tensorrt_api.json

The wheels: `tensorrt==8.6.0` (CPython 3.10), `tensorrt-cu13-bindings` 10 and 11, fetched with `pip download --no-deps
--python-version 3.10 --only-binary=:all: --platform manylinux_2_28_x86_64`. The bindings are a compiled module that links
TensorRT's libraries. Empty stand-ins for those let it be imported, which is enough to list its classes and enums.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CLASSES = ["Builder", "IBuilderConfig", "INetworkDefinition", "OnnxParser", "IOptimizationProfile", "ICudaEngine", "Logger"]
CLASSES += ["IExecutionContext", "Runtime", "EngineInspector", "ILayer", "ITensor", "IHostMemory", "ITimingCache"]
ENUMS = ["BuilderFlag", "NetworkDefinitionCreationFlag", "TacticSource", "MemoryPoolType", "ProfilingVerbosity", "DataType"]
ENUMS += ["LayerInformationFormat", "TensorIOMode", "ExecutionContextAllocationStrategy", "LayerType", "PreviewFeature"]

LIST = """
import importlib, json, sys
module = importlib.import_module(sys.argv[1])
public = lambda thing: sorted(n for n in dir(thing) if not n.startswith("_"))
listing = {"names": public(module)}
listing["classes"] = {c: public(getattr(module, c)) for c in sys.argv[2].split() if hasattr(module, c)}
listing["enums"] = {e: sorted(getattr(module, e).__members__) for e in sys.argv[3].split() if hasattr(module, e)}
print(json.dumps(listing))
"""


def api(wheel: Path) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(
            folder, [n for n in zipfile.ZipFile(wheel).namelist() if not n.endswith((".8", ".0"))]
        )
        bindings = next(Path(folder).glob("*/tensorrt.so"))
        stubs = Path(folder, "stubs")
        stubs.mkdir()
        # What is neither versioned (the C and C++ libraries) nor Python's own comes from TensorRT.
        undefined = subprocess.check_output(["nm", "-D", "--undefined-only", bindings], text=True).splitlines()
        wanted = [
            s for kind, s in map(str.split, undefined) if kind == "U" and "@" not in s and not s.lstrip("_").startswith("Py")
        ]
        source = Path(folder, "stub.c")
        source.write_text("".join(f"void *{symbol}(void) {{ return 0; }}\n" for symbol in wanted))
        needed = subprocess.check_output(["readelf", "-d", bindings], text=True)
        for library in (part.split("]")[0] for part in needed.split("Shared library: [")[1:]):
            if library.startswith("libnv"):
                command = ["gcc", "-shared", "-fPIC", source, f"-Wl,-soname,{library}", "-o", stubs / library]
                subprocess.check_call(command)
        environment = dict(os.environ, LD_LIBRARY_PATH=str(stubs), PYTHONPATH=folder)
        command = [sys.executable, "-c", LIST, bindings.parent.name, " ".join(CLASSES), " ".join(ENUMS)]
        return json.loads(subprocess.check_output(command, env=environment, text=True))


if __name__ == "__main__":
    table = {Path(wheel).name.split("-")[1]: api(Path(wheel)) for wheel in sys.argv[1:]}
    json.dump(table, sys.stdout, indent=0)
    print()
