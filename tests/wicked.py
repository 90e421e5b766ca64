"""An engine as bad as they come: leader and helpers ignore SIGTERM; there is a child, a grandchild in a session of its
own whose parent has ended (a daemon), and one more that forgot its environment as well.

``wicked.py FOLDER [program and arguments]``: each writes its pid into FOLDER under its name. The program, if there is
one, is one more child.
"""

import os
import signal
import sys
import time
from pathlib import Path

signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
out = Path(sys.argv[1])


def note(name: str) -> None:
    part = out / f".{name}"
    part.write_text(str(os.getpid()))
    part.replace(out / name)


def sleep() -> None:
    while True:
        time.sleep(60)


if os.fork() == 0:
    note("child")
    sleep()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note("daemon")
        sleep()
    os._exit(0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = "import os, sys, time, signal; signal.signal(15, signal.SIG_IGN);"
        code += "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(999)"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, str(out / "bare")], {})
    os._exit(0)
if sys.argv[2:] and os.fork() == 0:
    note("engine")
    os.execv(sys.argv[2], sys.argv[2:])
note("leader")
print("up", flush=True)
sleep()
