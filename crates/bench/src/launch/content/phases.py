"""A program that works, loads, works and loads again: two loading phases after the start, each some seconds ahead
announced by what it does before. Its argument is how long it works before each, seconds."""
import sys
import time
import zlib
import bz2

LEAD = float(sys.argv[1])
BLOCK = bytes(range(256)) * 64


def say(*words):
    print(*words, flush=True)


def work(number, step):
    """Busy for LEAD seconds with what only this phase does."""
    say("compute", number, time.monotonic())
    end = time.monotonic() + LEAD
    while time.monotonic() < end:
        step()


def load(number, names):
    start = time.monotonic()
    for name in names:
        __import__(name)
    say("loaded", number, time.monotonic() - start)


say("ready")
work(1, lambda: zlib.compress(BLOCK))
load(1, ["numpy", "scipy.stats", "scipy.optimize", "scipy.signal"])
work(2, lambda: bz2.compress(BLOCK))
load(2, ["pandas", "sqlite3", "xml.etree.ElementTree", "asyncio", "email.mime.text", "http.client"])
say("done")
