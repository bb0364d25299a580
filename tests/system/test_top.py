"""`dpctl top` over a whole terminal, read back through a terminal emulator (pyte)."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import unittest

import pyte

from support import BIN, SIM_JOB, ClusterTest, wait_for


class Terminal:
    """A program on a pseudo-terminal; `text` is what a user would see."""

    def __init__(self, cluster, *arguments, columns=100, lines=30, keys=True):
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        environment = {**cluster.env, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        environment.pop("NO_COLOR", None)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            if not keys:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(cluster.root)
            os.execve(BIN / "dpctl", ["dpctl", *arguments], environment)
        self.resize(columns, lines)

    def resize(self, columns, lines):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def read(self):
        while select.select([self.fd], [], [], 0)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                return
            self.raw += data
            self.stream.feed(data)

    def text(self):
        self.read()
        return "\n".join(self.screen.display)

    def shows(self, *words):
        def there():
            text = self.text()
            return text if all(word in text for word in words) else None
        return wait_for(f"{words} on the screen", there, 60)

    def waits(self):
        """Whether it has taken what signals there were, and sleeps."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file)
        return (status["State"][0] == "S" and int(status["ShdPnd"], 16) == 0 and
                int(status["SigPnd"], 16) == 0) or status["State"][0] == "Z"

    def press(self, keys):
        os.write(self.fd, keys)

    def exit_code(self):
        def ended():
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return (os.waitstatus_to_exitcode(status),) if pid else None
        code = wait_for("dpctl's end", ended, 60)[0]
        os.close(self.fd)
        return code

    def color_of(self, row, column):
        return self.screen.buffer[row][column].fg


class Top(ClusterTest):
    nodes, slots = 2, 4

    def start_job(self, pipeline=8):
        self.cluster.up()
        job = self.cluster.submit(**SIM_JOB, model_layers=8, parallel_pipeline=pipeline,
                                  parallel_schedule="1f1b")
        self.cluster.wait_step(job, 2)
        return job

    def test_ranks_over_time_fill_the_screen_and_keys_work(self):
        job = self.start_job()
        terminal = Terminal(self.cluster, "top", job, "-d", "0.2")
        text = terminal.shows(job, "RUNNING", "busy, older to the left", "1-8 of 8")
        lines = text.splitlines()
        ranks = [line for line in lines if line[2:6].strip().isdigit()]
        self.assertEqual([int(line[2:6]) for line in ranks], list(range(8)))
        terminal.press(b"m")
        terminal.shows("waiting for peers, older to the left")
        terminal.press(b"s")
        terminal.shows("lowest rank first")
        terminal.press(b" ")
        terminal.shows("PAUSED")
        terminal.press(b"q")
        self.assertEqual(terminal.exit_code(), 0)
        self.assertIn(b"\x1b[?1049l", terminal.raw, "the terminal is given back")

    def test_a_smaller_terminal_scrolls(self):
        job = self.start_job()
        terminal = Terminal(self.cluster, "top", job, "-d", "0.2", columns=60, lines=8)
        terminal.shows("1-4 of 8")
        terminal.press(b"\x1bOF")  # End
        terminal.shows("5-8 of 8")
        terminal.resize(100, 30)
        os.kill(terminal.pid, signal.SIGWINCH)
        terminal.shows("1-8 of 8", "older to the left")
        terminal.press(b"\x03")
        self.assertEqual(terminal.exit_code(), 130)
        self.assertIn(b"\x1b[?1049l", terminal.raw)

    def test_any_size_is_drawn(self):
        job = self.start_job()
        terminal = Terminal(self.cluster, "top", job, "-d", "0.2")
        terminal.shows("1-8 of 8")
        for lines, columns in ((1, 1), (2, 3), (0, 0), (65535, 65535), (1, 65535), (40000, 1),
                               (30, 100)):
            fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            os.kill(terminal.pid, signal.SIGWINCH)
            wait_for("it waits again", lambda: terminal.read() or terminal.waits())
        terminal.shows("1-8 of 8", "older to the left")
        terminal.press(b"q")
        self.assertEqual(terminal.exit_code(), 0)

    def test_a_terminal_that_is_gone_ends_it(self):
        job = self.start_job()
        own, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        with subprocess.Popen([BIN / "dpctl", "top", job], stdin=other, stdout=other,
                              stderr=subprocess.DEVNULL, start_new_session=True,
                              env={**self.cluster.env, "TERM": "xterm"}) as process:
            self.addCleanup(process.kill)
            os.close(other)
            wait_for("it draws", lambda: os.read(own, 65536))
            os.close(own)
            self.assertIn(process.wait(timeout=60), (0, 1))

    def test_cells_grow_with_time_and_have_colours(self):
        job = self.start_job()
        terminal = Terminal(self.cluster, "top", job, "-d", "0.2")

        def cells():
            terminal.read()
            row = next((i for i, line in enumerate(terminal.screen.display)
                        if line[2:6].strip() == "0"), None)
            if row is None:
                return None
            line = terminal.screen.display[row]
            known = [c for c in range(34, 99) if line[c] in "▁▂▃▄▅▆▇█"]
            return (row, known) if len(known) >= 5 else None
        row, known = wait_for("five cells of rank 0", cells, 60)
        self.assertEqual(known, list(range(known[0], 99)), "the newest at the right edge")
        self.assertNotIn("default", {terminal.color_of(row, c) for c in known})
        self.cluster.dpctl("cancel", job)
        self.assertEqual(terminal.exit_code(), 0)

    def test_without_keys_there_are_tables_on_a_terminal_too(self):
        job = self.start_job(pipeline=2)
        terminal = Terminal(self.cluster, "top", job, "-d", "0.2", columns=140, keys=False)
        terminal.shows("RANK", "BUSY", "IDLE")
        self.assertNotIn(b"\x1b[?1049h", terminal.raw)
        self.cluster.dpctl("cancel", job)
        self.assertEqual(terminal.exit_code(), 0)

    def test_a_dumb_terminal_gets_tables(self):
        job = self.start_job(pipeline=2)
        text = self.cluster.dpctl("top", job, "--once").stdout
        self.assertIn("RANK", text)
        self.assertNotIn("\x1b", text)


if __name__ == "__main__":
    unittest.main()
