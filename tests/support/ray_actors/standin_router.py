"""A stand-in for the router's command line: it prints that it is ready and waits for a signal."""

import signal
import threading


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    print("ready 127.0.0.1:1 http://127.0.0.1:2", flush=True)
    stop.wait()


if __name__ == "__main__":
    main()
