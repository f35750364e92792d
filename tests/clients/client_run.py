"""What the client scripts share: options, and one line of JSON per model and mode whatever happens."""

import argparse
import json
import time


def parse_args(description, modes, usual):
    """Reads the options; `usual` are the modes that run when none is asked for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", action="append", required=True, help="may be repeated")
    parser.add_argument("--key", default="sk-test")
    parser.add_argument("--mode", action="append", choices=modes, help="may be repeated")
    parser.add_argument("--header", action="append", default=[], help="'name: value'")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds per request")
    args = parser.parse_args()
    args.mode = args.mode or usual
    args.header = dict(header.split(": ", 1) for header in args.header)
    return args


class Progress:
    """What a stream had delivered when it ended or broke."""

    def __init__(self):
        self.begun = time.perf_counter()
        self.first_ms = None
        self.chunks = 0
        self.text = ""

    def add(self, text):
        if self.first_ms is None:
            self.first_ms = self.elapsed_ms()
        self.chunks += 1
        self.text += text

    def elapsed_ms(self):
        return round((time.perf_counter() - self.begun) * 1e3, 1)

    def report(self):
        return {"ms": self.elapsed_ms(), "first_ms": self.first_ms, "chunks": self.chunks, "text": self.text}


def describe(error):
    """The class, and whatever the error knows of status, code and Retry-After."""
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", {})
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else {}
    inner = inner if isinstance(inner, dict) else {}
    cause = error.__cause__
    return {
        "error": type(error).__name__,
        "status": getattr(error, "status_code", None) or getattr(response, "status_code", None),
        "code": getattr(error, "code", None) or inner.get("code"),
        "type": inner.get("type"),
        "retry_after": headers.get("retry-after"),
        "message": str(error),
        "cause": type(cause).__name__ if cause else None,
        "body": body,
    }


def run_modes(args, modes):
    """Runs each mode, a function of a model and a Progress that returns further facts. Gives the exit code."""
    failed = False
    for model in args.model:
        for mode in args.mode:
            progress = Progress()
            try:
                facts = {"ok": True, **modes[mode](model, progress)}
            # The point of these scripts is to report any failure, of whatever class.
            except Exception as error:  # noqa: BLE001
                failed = True
                facts = {"ok": False, **describe(error)}
            line = {"model": model, "mode": mode, **progress.report(), **facts}
            print(json.dumps(line, default=str), flush=True)
    return 1 if failed else 0
