//! Prints the output of ranks, and the messages of `hamlyn run` itself: one thread for standard
//! output and one for standard error, so that only they wait for a slow reader.
//!
//! The senders bound the pending output: each agent has credit for so many pieces
//! ([`super::frames::PIECES_MAX`]), and gets it back when they have been printed.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::time::Duration;

/// Longest part of a line that is kept to be printed with its rank.
const PART_BYTES_MAX: usize = 64 << 10;
/// Bytes of one write. Progress of a slow reader shows in the number of bytes written.
const WRITE_BYTES: usize = 4096;

enum Item {
    /// Output of a rank.
    Piece { host: usize, rank: u32, bytes: Vec<u8> },
    /// A message of this command.
    Words(String),
    /// Print the incomplete lines, whose ends will not come.
    Rest,
}

/// An item was printed, or cannot be.
pub struct Printed {
    pub is_error: bool,
    /// The host of the piece.
    pub host: Option<usize>,
    pub outcome: io::Result<()>,
}

/// Both threads.
pub struct Printers {
    of: [Printer; 2],
}

struct Printer {
    items: Sender<Item>,
    /// Items that have not been printed.
    waiting: usize,
    written: Arc<AtomicU64>,
    /// The bytes written at the last look, and the time since they last changed.
    seen: Option<(u64, Duration)>,
    /// Its reader has gone: output is discarded.
    is_shut: bool,
}

impl Printers {
    pub fn new<E: From<Printed> + Send + 'static>(
        is_labelled: bool,
        events: &SyncSender<E>,
    ) -> io::Result<Self> {
        let start = |is_error: bool| {
            let (items, to_print) = channel();
            let written = Arc::new(AtomicU64::new(0));
            let page = Page { is_error, is_labelled, parts: HashMap::new(), written };
            let written = page.written.clone();
            let events = events.clone();
            let name = if is_error { "stderr" } else { "stdout" };
            let run = move || page.print_all(&to_print, &events);
            std::thread::Builder::new().name(name.into()).spawn(run)?;
            io::Result::Ok(Printer { items, waiting: 0, written, seen: None, is_shut: false })
        };
        Ok(Self { of: [start(false)?, start(true)?] })
    }

    fn at(&mut self, is_error: bool) -> &mut Printer {
        &mut self.of[usize::from(is_error)]
    }

    fn put(&mut self, is_error: bool, item: Item) -> bool {
        let printer = self.at(is_error);
        let is_taken = !printer.is_shut && printer.items.send(item).is_ok();
        printer.waiting += usize::from(is_taken);
        is_taken
    }

    /// Prints a piece of a rank's output; `false`: it is discarded.
    pub fn print(&mut self, host: usize, rank: u32, is_error: bool, bytes: Vec<u8>) -> bool {
        self.put(is_error, Item::Piece { host, rank, bytes })
    }

    /// Prints a message of this command on standard error.
    pub fn say(&mut self, words: &str) {
        self.put(true, Item::Words(format!("hamlyn: {words}\n")));
    }

    /// Call it when no rank prints any more.
    pub fn finish(&mut self) {
        for is_error in [false, true] {
            self.put(is_error, Item::Rest);
        }
    }

    /// Call it for each item that a thread reports.
    pub fn printed(&mut self, is_error: bool) {
        let printer = self.at(is_error);
        printer.waiting = printer.waiting.saturating_sub(1);
    }

    /// Discards pending and later output.
    pub fn shut(&mut self, is_error: bool) {
        self.at(is_error).is_shut = true;
    }

    pub fn is_shut(&self, is_error: bool) -> bool {
        self.of[usize::from(is_error)].is_shut
    }

    /// Whether all output is printed or discarded.
    pub fn is_idle(&self) -> bool {
        self.of.iter().all(|printer| printer.is_shut || printer.waiting == 0)
    }

    /// Whether output is pending and none was written for `patience`. Call it once in each
    /// `period`: the time counts from the first call.
    pub fn is_stuck(&mut self, is_error: bool, period: Duration, patience: Duration) -> bool {
        let printer = self.at(is_error);
        if printer.is_shut || printer.waiting == 0 {
            printer.seen = None;
            return false;
        }
        let written = printer.written.load(Relaxed);
        let stuck = match printer.seen {
            Some((before, stuck)) if before == written => Some(stuck + period),
            _ => None,
        };
        printer.seen = Some((written, stuck.unwrap_or_default()));
        stuck.is_some_and(|stuck| stuck >= patience)
    }
}

/// The output of one thread.
struct Page {
    is_error: bool,
    is_labelled: bool,
    /// The beginnings of lines, by rank.
    parts: HashMap<u32, Vec<u8>>,
    written: Arc<AtomicU64>,
}

impl Page {
    fn print_all<E: From<Printed>>(mut self, items: &Receiver<Item>, events: &SyncSender<E>) {
        while let Ok(item) = items.recv() {
            let (host, bytes) = match item {
                Item::Piece { host, rank, bytes } if self.is_labelled => {
                    (Some(host), self.labelled(rank, &bytes))
                }
                Item::Piece { host, bytes, .. } => (Some(host), bytes),
                Item::Words(words) => (None, words.into_bytes()),
                Item::Rest => (None, self.rest()),
            };
            let outcome = self.write(&bytes);
            let printed = Printed { is_error: self.is_error, host, outcome };
            if events.send(printed.into()).is_err() {
                return;
            }
        }
    }

    fn labelled(&mut self, rank: u32, bytes: &[u8]) -> Vec<u8> {
        let mut part = self.parts.remove(&rank).unwrap_or_default();
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            part.extend_from_slice(piece);
            if part.ends_with(b"\n") || part.len() >= PART_BYTES_MAX {
                lines.extend_from_slice(format!("{rank}: ").as_bytes());
                lines.append(&mut part);
                if !lines.ends_with(b"\n") {
                    lines.push(b'\n');
                }
            }
        }
        self.parts.insert(rank, part);
        lines
    }

    fn rest(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        for (rank, part) in self.parts.drain().filter(|(_, part)| !part.is_empty()) {
            lines.extend_from_slice(&[format!("{rank}: ").as_bytes(), &part, b"\n"].concat());
        }
        lines
    }

    /// Writes all bytes, and waits for room. It also waits if another process has made the same
    /// pipe nonblocking: `ssh` does that with its standard error, which is this command's.
    fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        let (out, error) = (io::stdout(), io::stderr());
        let to = if self.is_error { error.as_fd() } else { out.as_fd() };
        while !bytes.is_empty() {
            match rustix::io::write(to, &bytes[..bytes.len().min(WRITE_BYTES)]) {
                Ok(written) => {
                    bytes = &bytes[written..];
                    self.written.fetch_add(written as u64, Relaxed);
                }
                Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&to, PollFlags::OUT)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                },
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        let written = Arc::default();
        Page { is_error: false, is_labelled: true, parts: HashMap::new(), written }
    }

    #[test]
    fn a_line_that_comes_in_parts_has_its_rank_once() {
        let mut page = page();
        assert_eq!(page.labelled(3, b"a\nb"), b"3: a\n");
        assert_eq!(page.labelled(4, b"c\n"), b"4: c\n");
        assert_eq!(page.labelled(3, b"b\n"), b"3: bb\n");
        assert_eq!(page.labelled(3, b"d"), b"");
        assert_eq!(page.rest(), b"3: d\n");
        assert_eq!(page.rest(), b"");
    }

    #[test]
    fn of_a_line_without_an_end_a_part_is_kept() {
        let mut page = page();
        let lines = page.labelled(0, &vec![b'x'; PART_BYTES_MAX]);
        assert_eq!(lines.len(), 3 + PART_BYTES_MAX + 1);
        assert_eq!(page.rest(), b"");
    }
}
