"""A Ray Serve application: replicas of the bundle, each batching by tokens as `bertopt serve` does.

    bundle/        the bundle
    app.py         the application: `serve run app:app` in this folder
    serve.yaml     the same for `serve deploy`: replicas, processors or a fraction of a GPU each, autoscaling

A replica is bertopt's own service, so that queue, buckets, deadlines and refusals are those of one machine. Ray routes to the
replica that has the fewest requests; the front sends again what a dying replica had, which Ray itself does not.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bertopt.bundle import Bundle
from bertopt.files import write_text

APP = '''"""{name}, served by Ray: `serve run app:app`, then POST /predict."""

from pathlib import Path

from bertopt.targets.ray_app import build

app = build(Path(__file__).with_name("bundle"), num_replicas=None)
'''

CONFIG = """# serve deploy serve.yaml; the bundle must lie at the same path on every node, or in the image
http_options:
  host: 127.0.0.1
  port: 8000
applications:
  - name: {name}
    route_prefix: /
    import_path: app:app
    deployments:
      - name: Bert
        max_ongoing_requests: 256
        max_queued_requests: 512
        autoscaling_config:
          min_replicas: 1
          max_replicas: 8
          target_ongoing_requests: 64
        ray_actor_options:
          {resources}
"""


def write(bundle: Bundle, out: Path) -> list[str]:
    """The application of a bundle in the folder `out`."""
    m = bundle.manifest
    shutil.copytree(bundle.folder, out / "bundle")
    write_text(out / "app.py", APP.format(name=m.name))
    resources = "num_gpus: 1  # or a fraction: 0.5 shares a card between two replicas" if m.device == "cuda" else "num_cpus: 2"
    write_text(out / "serve.yaml", CONFIG.format(name=m.name, resources=resources))
    return [
        f"Ray Serve application of {m.name}, rung {m.rung}: serve run app:app in its folder, or serve deploy serve.yaml",
        "its nodes want: pip install 'bertopt[ray]'" + ("" if m.device == "cuda" else " and 'bertopt[cpu]'"),
    ]
