"""Ten thousand hostile messages at one holder service: does its memory stay flat, is it well after?

    python benchmarks/soak.py             # some minutes on two cores
    python benchmarks/soak.py --quick     # a twentieth of the messages

The messages are those that a server, or an app that it ships, can send through the socket: junk,
frames that claim more than they hold, absurd shapes and names, queries past every limit, known ids
with other contents, strangers in a masked sum, trainings without end, streams that fall silent.
Each must get a refusal code, but for a few honest queries in between. Memory is the service's
resident set. Speed is not measured: other work may share the machine.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import grpc
import numpy as np
import psutil
import torch

from fedtranscribe.config import TeacherSettings, TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.holder.link import METHODS, NAME, PIECE_BYTES, is_serving
from fedtranscribe.models.teacher_training import train_teachers
from fedtranscribe.noise.key_files import new_pair
from fedtranscribe.noise.mask_keys import Members
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions import masked_messages as masked
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions import training_messages as trainings
from fedtranscribe.questions.messages import pack, unpack
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.runs.preparation import make_manifest

RESULT = Path(__file__).parent / "results" / "soak.md"
MESSAGES, QUICK, LOOKS = 10_000, 500, 20
HONEST = 50  # every so many messages
POLICY = """
epsilon = 10.0
noise = "central"
kinds = ["vote"]
trainers = ["dp-promise"]
rows_per_message = 1000
[holder]
name = "besieged"
teachers = "teachers"
records = "records.npz"
ledger = "book/ledger.sqlite"
socket = "h.sock"
log = "log.jsonl"
device = "cpu"
key = "book/key"
roster = "roster"
"""
GENTLE = NoisePlan(NoiseMode.LOCAL, 1e5, 1)

Attack = tuple[str, bytes, str]
"""Message type, frame, and the code that it must get."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of the messages")
    wanted = QUICK if parser.parse_args().quick else MESSAGES
    with tempfile.TemporaryDirectory() as folder:
        text = besiege(wanted, Path(folder))
    print(text)
    if wanted == MESSAGES:
        RESULT.write_text(text)


def besiege(wanted: int, home: Path) -> str:
    make_holder(home)
    program = Path(sys.executable).with_name("fedtranscribe")
    service = subprocess.Popen(
        [str(program), "holder", "serve", "--policy", str(home / "policy.toml")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stdout is not None
        service.stdout.readline()
        process, began = psutil.Process(service.pid), time.monotonic()
        seen, memory = send(wanted, home / "h.sock", lambda: process.memory_info().rss / 2**20)
        seconds, healthy = time.monotonic() - began, is_serving(home / "h.sock")
        threads, files = process.num_threads(), process.num_fds()
    finally:
        service.terminate()
        service.wait()
    assert healthy
    with Ledger.open_read_only(home / "book" / "ledger.sqlite") as ledger:
        ledger.verify()
        booked = {run.run: run.rows for run in ledger.runs()}
    assert booked == {"honest": 2 * (wanted // HONEST)}, booked
    assert not (home / "book" / "trainings").exists()
    # Caches and arenas have grown by half-time.
    settled, last = max(memory[: LOOKS // 2]), max(memory[LOOKS // 2 :])
    assert last < settled + 50, f"memory grew from {settled:.0f} to {last:.0f} MiB"
    size = sum(path.stat().st_size for path in (home / "book").iterdir()) / 2**20
    return table(wanted, seen, memory, seconds, threads, files, size)


def make_holder(home: Path) -> None:
    labels = np.arange(240) % 3
    images = np.random.default_rng(0).integers(0, 80, (240, 28, 28)) + 60 * labels[:, None, None]
    ids = np.array([f"p-{i}" for i in range(240)])
    pixels = images.astype(np.uint8)
    np.savez(home / "records.npz", images=pixels, labels=labels, ids=ids, classes=3)
    train = load(str(home / "records.npz")).train
    described = TranscribeSettings(
        teacher="cnn-small", data=str(home / "records.npz"), teachers=TeacherSettings(steps=5)
    )
    train_teachers(
        train,
        make_manifest(described, train, 4, "full"),
        home / "teachers",
        device=torch.device("cpu"),
        progress=lambda done, total: None,
    )
    (home / "book").mkdir(mode=0o700)
    (home / "roster").mkdir()
    for name in ("besieged", "clinic"):
        secret, public = new_pair()
        (home / "roster" / f"{name}.pub").write_bytes(public)
        if name == "besieged":
            (home / "book" / "key").write_bytes(secret)
    (home / "policy.toml").write_text(POLICY)


# ---------------------------------------------------------------- what is sent


def query(name: str, rows: int = 2, value: int = 0) -> ImageQuery:
    images = torch.full((rows, 1, 28, 28), value, dtype=torch.uint8)
    return ImageQuery(name, Kind.VOTE, images, torch.arange(3).repeat(rows, 1))


def frame(
    asked: ImageQuery,
    plan: NoisePlan = GENTLE,
    run: str = "honest",
    terms: Mapping[str, str | int] | None = None,
) -> bytes:
    content = queries.ask(queries.Envelope(asked, plan, run))
    content.terms.update(terms or {})
    return pack(content)


def shaped(*shape: int) -> bytes:
    """Images of a shape, and index sets that claim all the classes there could be of none."""
    content = queries.ask(queries.Envelope(query("x/shape"), GENTLE, "x"))
    sets = np.zeros((0, 65_535), np.uint16)
    return pack(content.and_arrays({"images": np.zeros(shape, np.uint8), "index_sets": sets}))


def attacks(number: int) -> list[Attack]:
    """One of each kind; ids and runs differ from round to round."""
    new, run = f"x/{number}", f"x-{number}"
    free = NoisePlan(NoiseMode.CENTRAL, 1e-9, 1)
    strangers = Members(("besieged", "mallory"), 0, 1)
    endless = {"method": "dp-promise", "dp_promise": {"phase2_epochs": 1e12}}
    malformed, policy = "MALFORMED_QUERY", "POLICY_REFUSED"
    return [
        (wire.ANSWER, b"\xff" * 100_000, malformed),
        (wire.ANSWER, (1 << 40).to_bytes(8, "little") + bytes(1_000), malformed),
        (wire.ANSWER, shaped(4_000, 1, 0, 0), malformed),
        (wire.ANSWER, frame(query(new), terms={"of-k": 65_535}), malformed),
        (wire.ANSWER, frame(query(new), terms={"query-id": "q" * 900_000}), malformed),
        (wire.ANSWER, frame(query(new, 1_001), run=run), policy),
        (wire.ANSWER, frame(query(new), free, run), "BUDGET_EXHAUSTED"),
        (wire.ANSWER, frame(query("honest/0", value=1 + number % 200)), "QUERY_CONFLICT"),
        (wire.SECAGG_KEY, pack(masked.ask_key(0, run, strangers)), "QUERY_CONFLICT"),
        (wire.SECAGG_MASK, pack(masked.ask_mask(0, run, new, {})), "QUERY_CONFLICT"),
        (wire.SECAGG_SIGN, pack(masked.ask_sign(0, "r" * 201, new, [], {})), malformed),
        (
            wire.TRAIN,
            pack(trainings.ask_train(0, run, {"method": "dp-promise", "epsilon": 1e6}, 9.0)),
            "BUDGET_EXHAUSTED",
        ),
        (wire.TRAIN, pack(trainings.ask_train(0, run, endless, 9.0)), malformed),
        (wire.MODEL, pack(trainings.ask_model(0, run)), "QUERY_CONFLICT"),
        (wire.ANSWER, pack(wire.Message.of({"protocol": 99})), "PROTOCOL_VERSION"),
    ]


def send(wanted: int, socket: Path, look: Callable[[], float]) -> tuple[Counter[str], list[float]]:
    """The codes that came back, and the memory at even distances."""
    seen: Counter[str] = Counter()
    memory: list[float] = []
    waiting: list[Attack] = []
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        for number in range(wanted):
            if number % HONEST == 0:
                code = ask(channel, wire.ANSWER, frame(query(f"honest/{number}")))
                assert code == "answered", code
            elif number % 1_000 == 501:
                code = ask(channel, wire.ANSWER, bytes(200_000_000))
                assert code == "POLICY_REFUSED", code
            elif number % 1_000 == 502:
                code = silence(socket)
            else:
                waiting = waiting or attacks(number)
                kind, content, expected = waiting.pop()
                code = ask(channel, kind, content)
                assert code == expected, (kind, code, expected)
            seen[code] += 1
            if (number + 1) % (wanted // LOOKS) == 0:
                memory.append(look())
    return seen, memory


def ask(channel: grpc.Channel, kind: str, content: bytes) -> str:
    pieces = (content[i : i + PIECE_BYTES] for i in range(0, len(content), PIECE_BYTES))
    reply = unpack(channel.stream_unary(f"/{NAME}/{METHODS[kind]}")(pieces, timeout=600))
    return str(reply.terms.get("refusal", "answered"))


def silence(socket: Path) -> str:
    """Sixteen streams that begin and say no more; the service hangs up on them."""
    over = threading.Event()

    def fall_silent() -> Iterator[bytes]:
        yield b"a beginning"
        over.wait(120)

    with ExitStack() as stack:
        stack.callback(over.set)
        calls = []
        for _ in range(16):
            channel = stack.enter_context(grpc.insecure_channel(f"unix:{socket}"))
            open_stream = channel.stream_unary(f"/{NAME}/{METHODS[wire.ANSWER]}")
            calls.append(open_stream.future(fall_silent(), timeout=120))
        time.sleep(1)
        assert is_serving(socket)
        assert all(call.exception() is not None for call in calls)
    return "hung up"


def table(
    wanted: int,
    seen: Counter[str],
    memory: list[float],
    seconds: float,
    threads: int,
    files: int,
    size: float,
) -> str:
    share = wanted // LOOKS
    lines = [
        "# Ten thousand hostile messages at one holder service",
        "",
        f"`python benchmarks/soak.py`, {datetime.now(UTC):%Y-%m-%d}: {wanted:,} messages in "
        f"{seconds:.0f} s on two cores shared with other work, so the time is no benchmark.",
        "",
        "| messages | resident set, MiB |",
        "| ---: | ---: |",
        *(f"| {share * (i + 1):,} | {used:,.0f} |" for i, used in enumerate(memory)),
        "",
        "| answer | times |",
        "| --- | ---: |",
        *(f"| {code} | {count:,} |" for code, count in sorted(seen.items())),
        "",
        f"Afterwards the service was healthy, with {threads} threads and {files} open files; its "
        "ledger was verified again and held only the honest queries; the ledger's folder had "
        f"{size:.2f} MiB.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
