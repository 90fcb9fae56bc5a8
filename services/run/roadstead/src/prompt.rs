//! Asks for a secret without showing it.
//!
//! The terminal is read byte by byte with echo, line editing and signals off, and put back as it was in
//! every way this can end: with signals on, Ctrl-C would leave people with a terminal that shows nothing.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};

use anyhow::{Context, Result, bail};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// No secret of ours is longer.
const MAX_BYTES: usize = 1024;

/// What was typed on the terminal, even when standard input is something else.
pub fn hidden(prompt: &str) -> Result<String> {
    let terminal = File::options().read(true).write(true).open("/dev/tty");
    let terminal = terminal.context("no terminal to ask on; use --password-stdin or --token-file")?;
    let quiet = Quiet::new(&terminal)?;
    (&terminal).write_all(prompt.as_bytes()).context("terminal")?;
    let typed = read_line(BufReader::new(&terminal));
    drop(quiet);
    (&terminal).write_all(b"\n").context("terminal")?;
    typed
}

/// Puts the terminal back when dropped.
struct Quiet<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Quiet<'a> {
    fn new(terminal: &'a File) -> Result<Quiet<'a>> {
        let before = tcgetattr(terminal).context("terminal")?;
        let mut quiet = before.clone();
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        tcsetattr(terminal, OptionalActions::Flush, &quiet).context("terminal")?;
        Ok(Quiet { terminal, before })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

fn read_line(from: impl BufRead) -> Result<String> {
    let mut typed = Vec::new();
    for byte in from.bytes() {
        match byte.context("terminal")? {
            b'\r' | b'\n' => break,
            // Ctrl-C, and Ctrl-D on an empty line: never mind.
            3 => bail!("stopped"),
            4 if typed.is_empty() => bail!("stopped"),
            // Ctrl-U begins anew, Backspace takes one character back.
            21 => typed.clear(),
            8 | 127 => while typed.pop().is_some_and(|last: u8| last & 0b1100_0000 == 0b1000_0000) {},
            _ if typed.len() == MAX_BYTES => bail!("that is longer than any password"),
            byte => typed.push(byte),
        }
    }
    String::from_utf8(typed).context("what was typed is not text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_edited_as_people_expect() {
        for (keys, wanted) in [
            ("secret\n", Some("secret")),
            ("secreT\u{7f}t\r", Some("secret")),
            ("wr\u{e4}\u{8}\u{8}ong\n", Some("wong")),
            ("wrong\u{15}right\n", Some("right")),
            ("half\u{3}", None),
            ("\u{4}", None),
            ("no end", Some("no end")),
        ] {
            assert_eq!(read_line(keys.as_bytes()).ok().as_deref(), wanted, "{keys:?}");
        }
    }
}
