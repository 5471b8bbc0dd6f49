"""What turns a graph into a plan, one module a library; `bertopt.build` runs them in a process of their own.

A builder is a module of this package with three functions:

    unavailable(target) -> None | reason     why this target cannot be built here
    build(job, report) -> Built              in the child process; `report` takes progress
    open_session(plan, pad_id) -> Session    the plan on this machine, to judge its answers
"""

BUILDERS = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt", "openvino": "openvino"}  # target -> module
