"""A program on a terminal of its own: a pty with an emulator (pyte), which shows the screen that a
person would see."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios

import pyte

import programs


class Screen(pyte.Screen):
    """Knows xterm's REP too, which curses draws blanks with."""

    def draw(self, data):
        self.last = data[-1:]
        super().draw(data)

    def repeat(self, count=1):
        self.draw(self.last * count)


class Stream(pyte.ByteStream):
    csi = {**pyte.ByteStream.csi, "b": "repeat"}
    events = pyte.ByteStream.events | {"repeat"}


class Terminal:
    def __init__(self, argv, columns=80, rows=24, env=None, stdin=None):
        self.screen = Screen(columns, rows)
        self.stream = Stream(self.screen)
        self.raw = b""
        self.master, self.slave = pty.openpty()
        os.set_blocking(self.master, False)
        self._set_size(columns, rows)
        self.modes = termios.tcgetattr(self.slave)
        # The slave stays open here, so that its modes can be read after the program's end.
        self.process = subprocess.Popen(
            [str(word) for word in argv], stdin=self.slave if stdin is None else stdin,
            stdout=self.slave, stderr=self.slave, preexec_fn=self._take_terminal,
            env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", **(env or {})},
        )

    def _take_terminal(self):
        os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def _set_size(self, columns, rows):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns, rows):
        """Resizes the terminal as a window manager does: the kernel sends SIGWINCH."""
        self.pump()
        self.screen.resize(rows, columns)
        self._set_size(columns, rows)

    def pump(self):
        """Feeds the program's output to the emulator; for a limited time, in case it writes
        continuously."""
        for _ in range(16):
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # nothing there
                return
            if not piece:
                return
            self.raw += piece
            self.stream.feed(piece)

    @property
    def lines(self):
        self.pump()
        return [line.rstrip() for line in self.screen.display]

    def text(self):
        return "\n".join(self.lines)

    def press(self, keys):
        os.write(self.master, keys.encode() if isinstance(keys, str) else keys)

    def wait(self, what, condition):
        """Waits until condition(text of the screen) is true and returns it."""
        try:
            return programs.wait_for(what, lambda: condition(self.text()))
        except AssertionError as error:
            raise AssertionError(f"{error}\nThe screen:\n{self.text()}") from None

    def see(self, part):
        return self.wait(f"the screen shows {part!r}", lambda text: part in text)

    def end(self):
        """Its exit status."""
        def has_ended():
            self.pump()  # a full terminal buffer would block it
            return self.process.poll() is not None

        programs.wait_for("the program ends", has_ended)
        self.pump()
        return self.process.returncode

    def is_restored(self):
        """True when modes are restored, the cursor is shown, the alternate screen left, wrapping on
        and keys normal."""
        self.pump()
        after = self.raw.rfind(b"\033[?1049l")
        return (
            termios.tcgetattr(self.slave) == self.modes
            and after > self.raw.rfind(b"\033[?1049h")
            and self.raw.rfind(b"\033[?25h") > self.raw.rfind(b"\033[?25l")
            and self.raw.rfind(b"\033[?7h") >= self.raw.rfind(b"\033[?7l")  # -1: never off
            and self.raw.rfind(b"\033[?1l") > self.raw.rfind(b"\033[?1h")
        )

    def cpu_seconds(self):
        """CPU time of the program and its threads."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """Ends it with SIGTERM and reads the rest of its output; true when it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.end()
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.master)
            os.close(self.slave)
        return True
