"""Becomes the program of the command line, as a process that ends with its parent but not with a SIGTERM.

HAProxy is started so. It would drop the requests in flight if it got a stop signal that is sent to every
process of the run, and it would keep the port if it outlived its manager.

This script runs before each start of HAProxy, so it imports only the standard library.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # HAProxy keeps ignoring a SIGTERM that is ignored at its start. It resets SIGINT, but only a terminal
    # sends that to all its processes, and the new session has none. Serve ends HAProxy by other signals.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    os.execv(sys.argv[1], sys.argv[1:])
